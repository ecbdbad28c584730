#include "fiber.h"

#include <cstdint>

#if !defined(TORCHAMP_UCONTEXT)

// Saves the callee-saved registers on the old stack, and restores those of the new stack.
asm(R"(
  .text
  .type torchamp_switch_stack, @function
torchamp_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size torchamp_switch_stack, . - torchamp_switch_stack
)");

extern "C" void switch_stack(void** from, void* to) asm("torchamp_switch_stack");

namespace emulation {

constexpr int kSavedRegisters = 6;

void Context::prepare(char* stack, std::size_t bytes, void (*entry)()) {
  auto top = reinterpret_cast<std::uintptr_t>(stack + bytes) & ~std::uintptr_t{15};
  auto* slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;  // the place of a caller's return address
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--slot = nullptr;
  stack_pointer_ = slot;
}

void Context::switch_to(Context& to) {
  switch_stack(&stack_pointer_, to.stack_pointer_);
}

}  // namespace emulation

#else

namespace emulation {

void Context::prepare(char* stack, std::size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void Context::switch_to(Context& to) {
  swapcontext(&context_, &to.context_);
}

}  // namespace emulation

#endif

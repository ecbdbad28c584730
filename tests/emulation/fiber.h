// Stacks that take turns in one thread.
//
// Together with the scheduler this is compiled without sanitizers and tells them of every switch
// itself: instrumented, it would report races of its own.
#pragma once

#include <cstddef>

// Elsewhere than on x86-64, and where TORCHAMP_UCONTEXT asks for it, by the slower means of POSIX.
#if !defined(__x86_64__) && !defined(TORCHAMP_UCONTEXT)
#define TORCHAMP_UCONTEXT
#endif
#if defined(TORCHAMP_UCONTEXT)
#include <ucontext.h>
#endif

namespace emulation {

/// Where a stack that is not running stands.
class Context {
 public:
  /// Makes this context call `entry`, which must not return, when it is first switched to.
  void prepare(char* stack, std::size_t bytes, void (*entry)());

  /// Goes on where `to` stands, until something switches back here.
  void switch_to(Context& to);

 private:
#if !defined(TORCHAMP_UCONTEXT)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace emulation

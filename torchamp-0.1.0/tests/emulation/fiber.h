// Fibers: stacks that run in turn in one thread.
//
// Like the scheduler, this is compiled without sanitizers and reports every switch to them itself:
// instrumented, it would cause false reports.
#pragma once

#include <cstddef>

// On other processors than x86-64, and with TORCHAMP_UCONTEXT, uses POSIX ucontext, which is
// slower.
#if !defined(__x86_64__) && !defined(TORCHAMP_UCONTEXT)
#define TORCHAMP_UCONTEXT
#endif
#if defined(TORCHAMP_UCONTEXT)
#include <ucontext.h>
#endif

namespace emulation {

/// The saved state of a stack that is not running.
class Context {
 public:
  /// Makes this context call `entry`, which must not return, when it is first switched to.
  void prepare(char* stack, std::size_t bytes, void (*entry)());

  /// Continues at `to`, until something switches back here.
  void switch_to(Context& to);

 private:
#if !defined(TORCHAMP_UCONTEXT)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace emulation

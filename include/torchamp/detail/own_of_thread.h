// A variable of each thread that outlives the thread's others.
#pragma once

#include <utility>

namespace torchamp::detail {

/// The calling thread's own T, one for each type. What the program destroys later, as its globals,
/// finds a new one, which is never destroyed.
template <class T>
T& own_of_thread() {
  thread_local T* own = nullptr;
  if (own == nullptr) {
    own = new T;
    struct End {
      ~End() { delete std::exchange(own, nullptr); }
    };
    thread_local const End end;  // NOLINT(clang-diagnostic-exit-time-destructors)
  }
  return *own;
}

}  // namespace torchamp::detail

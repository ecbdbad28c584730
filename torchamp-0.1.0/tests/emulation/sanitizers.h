// The sanitizers' fiber interface. Weak, because the functions do not exist without a sanitizer.
#pragma once

#include <cstddef>

extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                          std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom,
                                                           std::size_t* size);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* from, std::size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* from,
                                                         std::size_t size);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace emulation {

constexpr unsigned kNoSynchronisation = 1;

inline bool has_tsan() {
  return __tsan_create_fiber != nullptr;
}

inline void* tsan_create() {
  return has_tsan() ? __tsan_create_fiber(0) : nullptr;
}
inline void* tsan_current() {
  return has_tsan() ? __tsan_get_current_fiber() : nullptr;
}
inline void tsan_destroy(void* fiber) {
  if (has_tsan()) __tsan_destroy_fiber(fiber);
}
inline void tsan_switch(void* fiber) {
  if (has_tsan()) __tsan_switch_to_fiber(fiber, kNoSynchronisation);
}
inline void tsan_acquire(void* address) {
  if (has_tsan()) __tsan_acquire(address);
}
inline void tsan_release(void* address) {
  if (has_tsan()) __tsan_release(address);
}

inline void asan_start_switch(void** fake_stack, const void* bottom, std::size_t size) {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
inline void asan_finish_switch(void* fake_stack, const void** bottom, std::size_t* size) {
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
}
inline void asan_poison(const void* from, std::size_t size) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(from, size);
}
inline void asan_unpoison(const void* from, std::size_t size) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(from, size);
}

}  // namespace emulation

// Prefetching by software. The processor prefetches by itself too, but only to the end of a page of
// 4 KiB: a pass over memory waits anew on each page of each list.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/block.h"
#include "math/macros.h"

/// Before a loop whose iterations do not depend on each other, though the compiler cannot know that
/// lists do not overlap.
#if defined(__clang__)
#define TORCHAMP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TORCHAMP_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace torchamp::cpu {

/// How many elements a loop prefetches ahead of itself. 256 to 512 measured alike.
constexpr int kPrefetched = 384;

/// How many neighbouring elements are computed at once.
constexpr int kLanes = 32;

/// The lanes from list[i] on, which may be past the end of a block's buffer.
template <class T>
TORCHAMP_MATH void prefetch_lanes(const T* list, int64 i) {
  const auto begin = reinterpret_cast<uintptr_t>(list) + i * sizeof(T);
  for (size_t byte = 0; byte < kLanes * sizeof(T); byte += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + byte));
  }
}

/// The first of a span's elements where the visited ones end before what would be prefetched.
inline int64 prefetching_end(const Span& span) {
  return span.count + span.next - kPrefetched;
}

/// Calls visit(i, i % kLanes) for each i < span.count. Prefetches `lists`, each with the span's
/// elements, between the arithmetic: a burst of prefetches would wait for each other.
template <class Visit, class... T>
TORCHAMP_MATH void for_each_element(const Span& span, const Visit& visit, const T*... lists) {
  const int64 end = prefetching_end(span);
  int i = 0;
  for (; i + kLanes <= span.count; i += kLanes) {
    if (i < end) (prefetch_lanes(lists, i + kPrefetched), ...);
    TORCHAMP_INDEPENDENT
    for (int lane = 0; lane < kLanes; ++lane) visit(i + lane, lane);
  }
  for (int lane = 0; i < span.count; ++i, ++lane) visit(i, lane);
}

}  // namespace torchamp::cpu

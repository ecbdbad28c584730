// Prefetching by software. The processor prefetches by itself too, but only to the end of a page of
// 4 KiB: a pass over memory waits anew on each page of each list.
#pragma once

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

template <class T>
TORCHAMP_MATH void prefetch_lanes(const T* list) {
  constexpr int kLine = 64 / sizeof(T);
  for (int lane = 0; lane < kLanes; lane += kLine) __builtin_prefetch(list + lane);
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
    if (i < end) (prefetch_lanes(lists + i + kPrefetched), ...);
    TORCHAMP_INDEPENDENT
    for (int lane = 0; lane < kLanes; ++lane) visit(i + lane, lane);
  }
  for (int lane = 0; i < span.count; ++i, ++lane) visit(i, lane);
}

}  // namespace torchamp::cpu

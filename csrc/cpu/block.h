// Blocks: at most 256 neighbouring elements of one tensor, loaded as float and stored in the
// tensor's dtype.
#pragma once

#include "backends/plan.h"
#include "math/float16.h"

namespace torchamp::cpu {

constexpr int kBlock = 256;

/// The elements [begin, begin + count) of one tensor, after which the thread visits `next` more.
struct Span {
  int64 tensor;
  int64 begin;
  int count;
  int64 next = 0;
};

inline char* address_of(const Plan& plan, const Span& span, int list) {
  return static_cast<char*>(plan.address(span.tensor, list)) +
         span.begin * size_of(plan.dtype(span.tensor, list));
}

/// The span's values as floats: in place where they are floats already, else converted into
/// `buffer`.
const float* load(const Plan& plan, const Span& span, int list, float* buffer);

/// Where to write the span's results: in place for floats that need no streaming, else `buffer`,
/// which store() takes from.
float* output(const Plan& plan, const Span& span, int list, bool stream, float* buffer);

/// Rounds `values` into the span unless they were written in place. `stream` bypasses the caches;
/// the address must then be a multiple of 32 bytes.
void store(const Plan& plan, const Span& span, int list, const float* values, bool stream);

/// Whether a value is not finite once rounded to the list's low precision.
bool any_overflow(const Plan& plan, const Span& span, int list, const float* values);

/// Whether one of the span's values in the list is not finite.
bool any_nonfinite(const Plan& plan, const Span& span, int list);

/// Makes streamed stores visible to other threads.
void fence();

}  // namespace torchamp::cpu

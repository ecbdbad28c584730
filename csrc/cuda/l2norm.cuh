// l2norm: each unit stores the sum of its squares; the sums are added per tensor and in total. No
// atomics and a fixed order throughout, so that runs are bit for bit reproducible.
#pragma once

#include "cuda/arguments.h"
#include "cuda/block_sum.h"
#include "cuda/walk.h"
#include "math/l2norm.h"

namespace torchamp::cuda {

struct L2normElement {
  static constexpr int kReads = 1;
  static constexpr int kWrites = -1;
  static constexpr int kBatch = 4;
  float sum = 0.0f;
  bool found = false;

  TORCHAMP_DEVICE bool reads(int) const { return true; }

  TORCHAMP_DEVICE float operator()(float value) {
    found |= is_nonfinite(value);
    sum = add_square(sum, value);
    return value;
  }
};

/// One block per unit.
template <class Launch>
TORCHAMP_DEVICE void l2norm(const Launch& launch) {
  const auto slice = slice_of(launch, blockIdx.x);
  L2normElement element;
  if (!is_set(launch.arguments.skip)) walk(slice, element, block_team());
  report(element.found, launch.arguments.flags, slice.position);
  const float sum = block_sum<kThreads>(element.sum);
  if (threadIdx.x == 0) launch.arguments.partials[blockIdx.x] = sum;
}

/// The square root of the sum of partials[begin … end), in the first thread of a block of kBlock.
template <int kBlock>
TORCHAMP_DEVICE float norm_of(const float* partials, int64 begin, int64 end) {
  constexpr int kInFlight = 4;  // loads of a thread
  double sum = 0.0;
  TORCHAMP_ROLLED
  for (int64 first = begin + threadIdx.x; first < end; first += kInFlight * kBlock) {
    float values[kInFlight] = {};
    TORCHAMP_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      const int64 i = first + int64{k} * kBlock;
      if (i < end) values[k] = partials[i];
    }
    TORCHAMP_UNROLL
    for (int k = 0; k < kInFlight; ++k) sum += values[k];
  }
  return static_cast<float>(sqrt(block_sum<kBlock>(sum)));
}

/// One block per tensor.
template <class Launch>
TORCHAMP_DEVICE void l2norm_per_tensor(const Launch& launch) {
  const auto& entry = launch.entry(static_cast<int>(blockIdx.x));
  const float norm = norm_of<kThreads>(launch.arguments.partials, entry.first_unit,
                                       end_unit(launch, static_cast<int>(blockIdx.x)));
  if (threadIdx.x == 0) launch.arguments.per_tensor[entry.position] = norm;
}

/// A single block.
TORCHAMP_DEVICE void l2norm_total(const L2normTotalArguments& arguments) {
  const float norm = norm_of<kMaxThreads>(arguments.partials, 0, arguments.count);
  if (threadIdx.x == 0) *arguments.norm = norm;
}

}  // namespace torchamp::cuda

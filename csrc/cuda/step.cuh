// step: an optimizer's whole step in one pass: grad, param and states in; param, states and the
// model's low-precision copy out. A kernel of one thread a tensor works out the coefficients
// before.
#pragma once

#include "cuda/arguments.h"
#include "cuda/walk.h"

namespace torchamp::cuda {

template <class Rule>
TORCHAMP_DEVICE void prepare_step(const PrepareStepArguments& arguments) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= arguments.count || skips(arguments.inputs)) return;
  count_step<Rule>(arguments.inputs, arguments.positions[i]);
  prepare<Rule>(arguments.inputs, arguments.positions[i]);
}

/// A group of n neighbouring elements: every list's bits are on their way before any is used.
template <class Rule, int n, int kLists>
struct StepGroup {
  static constexpr int kReads = 2 + Rule::kStates;
  static constexpr int kModel = kReads;

  Bits<n> bits[kReads];
  float values[kReads][n];

  TORCHAMP_DEVICE void load(const Slice<kLists>& slice, int i) {
    TORCHAMP_UNROLL
    for (int list = 0; list < kReads; ++list) {
      const char* from = slice.address[list] + i * size_of(slice.dtype[list]);
      if (slice.dtype[list] == DType::kFloat32) {
        load_bytes<4 * n>(from, bits[list].words);
      } else {
        load_bytes<2 * n>(from, bits[list].words);
      }
    }
    TORCHAMP_UNROLL
    for (int list = 0; list < kReads; ++list) widen<n>(slice.dtype[list], bits[list], values[list]);
  }

  TORCHAMP_DEVICE void step(const typename Rule::Coefficients& coefficients) {
    TORCHAMP_UNROLL
    for (int lane = 0; lane < n; ++lane) {
      float states[Rule::kStates + 1];
      TORCHAMP_UNROLL
      for (int s = 0; s < Rule::kStates; ++s) states[s] = values[2 + s][lane];
      values[1][lane] = Rule::step(coefficients, values[0][lane], values[1][lane], states);
      TORCHAMP_UNROLL
      for (int s = 0; s < Rule::kStates; ++s) values[2 + s][lane] = states[s];
    }
  }

  TORCHAMP_DEVICE void store(const Slice<kLists>& slice, int i) const {
    TORCHAMP_UNROLL
    for (int list = 1; list < kReads; ++list) store_list(slice, i, list, values[list]);
    if (slice.address[kModel] != nullptr) store_list(slice, i, kModel, values[1]);
  }

  TORCHAMP_DEVICE static void store_list(const Slice<kLists>& slice, int i, int list,
                                         const float* values) {
    const DType dtype = slice.dtype[list];
    store_values<n>(dtype, slice.address[list] + i * size_of(dtype), values);
  }
};

template <class Rule, int n, int kLists>
TORCHAMP_DEVICE void step_groups(const Slice<kLists>& slice, const Groups<n>& groups,
                                 const typename Rule::Coefficients& coefficients) {
  const Team team = warp_team();
  TORCHAMP_ROLLED
  for (int g = team.rank; g < groups.count; g += team.size) {
    StepGroup<Rule, n, kLists> group;
    group.load(slice, groups[g]);
    group.step(coefficients);
    group.store(slice, groups[g]);
  }
}

template <class Rule, class Launch>
TORCHAMP_DEVICE void step(const Launch& launch) {
  const uint32 unit = warp_unit();
  if (unit >= launch.units || skips(launch.arguments.inputs)) return;
  const auto slice = slice_of(launch, unit);
  const typename Rule::Coefficients coefficients =
      *coefficients_at<Rule>(launch.arguments.inputs, slice.position);
  const Groups<8> vectors = aligned_vectors<8>(slice);
  step_groups<Rule>(slice, vectors, coefficients);
  step_groups<Rule>(slice, rest_of(slice.count, vectors), coefficients);
}

}  // namespace torchamp::cuda

// step: an optimizer's whole step in one pass: grad, param and states in; param, states and the
// model's low-precision copy out. Each warp works out the coefficients of its tensor; the last
// block counts the steps.
#pragma once

#include "cuda/arguments.h"
#include "cuda/last_block.h"
#include "cuda/rounding.h"
#include "cuda/walk.h"

namespace torchamp::cuda {

/// How a slice's lists are rounded.
struct Rounding {
  NoiseStream stream;
  bool stochastic_rounding;
};

/// A group of n neighbouring elements: all lists' loads are in flight before any is used.
/// `mixed`: the grads are misaligned to the rest.
/// kCompact: lists may be rounded stochastically.
template <class Rule, int n, int kLists, bool kCompact>
struct StepGroup {
  static constexpr int kParam = 1;
  static constexpr int kReads = 2 + Rule::kStates;
  static constexpr int kModel = kReads;

  const Slice<kLists>& slice;
  int first;  ///< number of the group's first element in the slice
  Bits<n> bits[kReads];
  float values[kReads][n];

  TORCHAMP_DEVICE StepGroup(const Slice<kLists>& slice, int first) : slice(slice), first(first) {}

  TORCHAMP_DEVICE char* address(int list) const {
    return slice.address[list] + first * size_of(slice.dtype[list]);
  }

  TORCHAMP_DEVICE void load(bool mixed) {
    if (mixed && slice.dtype[0] == DType::kFloat32) {
      load_words<n>(address(0), bits[0].words);
    } else if (mixed) {
      load_shorts<n>(address(0), bits[0].words);
    } else {
      load_bits(slice.dtype[0], address(0), bits[0]);
    }
    TORCHAMP_UNROLL
    for (int list = 1; list < kReads; ++list)
      load_bits(slice.dtype[list], address(list), bits[list]);
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

  TORCHAMP_DEVICE void store(const Rounding& rounding) const {
    TORCHAMP_UNROLL
    for (int list = 2; list < kReads; ++list) store_stochastically(list, rounding.stream);
    // Without states, a compact step is one that rounds its parameters stochastically.
    if (kCompact && (Rule::kStates == 0 || rounding.stochastic_rounding)) {
      store_stochastically(kParam, rounding.stream);
    } else {
      store_values<n>(slice.dtype[kParam], address(kParam), values[kParam]);
    }
    if (slice.address[kModel] == nullptr) return;
    store_values<n>(slice.dtype[kModel], address(kModel), values[kParam]);
  }

  TORCHAMP_DEVICE void store_stochastically(int list, const NoiseStream& stream) const {
    if (slice.dtype[list] != DType::kBFloat16) {
      store_values<n>(slice.dtype[list], address(list), values[list]);
    } else if constexpr (kCompact) {
      store_noisy<n>(address(list), values[list], stream, first, list);
    }
  }
};

template <class Rule, bool kCompact, int n, int kLists>
TORCHAMP_DEVICE void step_groups(const Slice<kLists>& slice, const Groups<n>& groups,
                                 const typename Rule::Coefficients& coefficients,
                                 const Rounding& rounding) {
  const Team team = warp_team();
  TORCHAMP_ROLLED
  for (int g = team.rank; g < groups.count; g += team.size) {
    StepGroup<Rule, n, kLists, kCompact> group(slice, groups[g]);
    group.load(groups.mixed);
    group.step(coefficients);
    group.store(rounding);
  }
}

/// Elements that a thread steps together: as many as fit its registers.
template <class Rule>
constexpr int kStepVector = Rule::kStates > 2 ? 4 : 8;

template <class Launch>
TORCHAMP_DEVICE Stepped stepped_at(const Launch& launch, int index) {
  const auto& entry = launch.entry(index);
  return {entry.position, &launch.row(entry.row), entry.tag != 0};
}

template <class Rule, bool kCompact, class Launch>
TORCHAMP_DEVICE void step_unit(const Launch& launch, uint32 unit) {
  const StepInputs& inputs = launch.arguments.inputs;
  const int entry = entry_of(launch, unit);
  const Stepped stepped = stepped_at(launch, entry);
  const auto c = coefficients<Rule>(inputs, stepped);
  const auto slice = slice_of(launch, unit, entry);
  const Rounding rounding{noise_from(noise_key<Rule>(inputs, stepped.position), slice.begin),
                          inputs.stochastic_rounding};
  const auto vectors = aligned_vectors<kStepVector<Rule>>(slice);
  step_groups<Rule, kCompact>(slice, vectors, c, rounding);
  step_groups<Rule, kCompact>(slice, rest_of(slice.count, vectors), c, rounding);
}

/// Positions of neighbouring entries are mostly consecutive; looking each up costs more.
template <class Launch>
TORCHAMP_DEVICE int32 position_of(const Launch& launch, int entry) {
  return launch.consecutive ? launch.first_position + entry : launch.entry(entry).position;
}

/// Several counts are in flight at once.
template <class Launch>
TORCHAMP_DEVICE void count_steps(const Launch& launch) {
  constexpr int kBatch = 4;
  float* const steps = launch.arguments.inputs.steps;
  const int stride = static_cast<int>(blockDim.x);
  TORCHAMP_ROLLED
  for (int first = static_cast<int>(threadIdx.x); first < launch.entries;
       first += kBatch * stride) {
    float counts[kBatch];
    TORCHAMP_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int entry = first + k * stride;
      if (entry < launch.entries) counts[k] = steps[position_of(launch, entry)] + 1.0f;
    }
    TORCHAMP_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int entry = first + k * stride;
      if (entry < launch.entries) steps[position_of(launch, entry)] = counts[k];
    }
  }
}

template <class Rule, class Launch>
TORCHAMP_DEVICE void finish_steps(const Launch& launch) {
  if constexpr (Rule::kAverages) {
    for (int i = static_cast<int>(threadIdx.x); i < launch.entries; i += blockDim.x) {
      finish_step<Rule>(launch.arguments.inputs, stepped_at(launch, i));
    }
  } else {
    count_steps(launch);
  }
}

/// Every block draws a ticket, whether it steps or not: if `skip` is
/// written meanwhile, the ticket is still 0 in the end.
template <class Rule, bool kCompact, class Launch>
TORCHAMP_DEVICE void step(const Launch& launch) {
  const bool runs = !skips(launch.arguments.inputs);
  const uint32 unit = warp_unit(launch);
  if (runs && unit < launch.units) step_unit<Rule, kCompact>(launch, unit);
  if (!Rule::kCounts || !is_last_block</*sees_writes=*/false>(launch.arguments.ticket)) return;
  if (runs) finish_steps<Rule>(launch);
}

}  // namespace torchamp::cuda

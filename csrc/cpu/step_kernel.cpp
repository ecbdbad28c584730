#include "backends/kernels.h"
#include "cpu/isa.h"
#include "cpu/prefetch.h"
#include "cpu/rounding.h"
#include "cpu/walk.h"

namespace torchamp::cpu {
namespace {

template <class Rule>
struct StepBlock {
  using Coefficients = typename Rule::Coefficients;

  TORCHAMP_MATH static void run(const float* __restrict grad, float* __restrict param,
                                float* __restrict first, float* __restrict second,
                                float* __restrict third, const Span& span, const Coefficients* c) {
    const Coefficients coefficients = *c;
    const auto step = [=](int i, int) {
      float states[3] = {};
      if (Rule::kStates > 0) states[0] = first[i];
      if (Rule::kStates > 1) states[1] = second[i];
      if (Rule::kStates > 2) states[2] = third[i];
      param[i] = Rule::step(coefficients, grad[i], param[i], states);
      if (Rule::kStates > 0) first[i] = states[0];
      if (Rule::kStates > 1) second[i] = states[1];
      if (Rule::kStates > 2) third[i] = states[2];
    };
    if constexpr (Rule::kStates == 0) for_each_element(span, step, grad, param);
    if constexpr (Rule::kStates == 1) for_each_element(span, step, grad, param, first);
    if constexpr (Rule::kStates == 2) for_each_element(span, step, grad, param, first, second);
    if constexpr (Rule::kStates == 3) {
      for_each_element(span, step, grad, param, first, second, third);
    }
  }
};

/// A list that is read and written: floats in place, other types in a separate buffer.
class InOut {
 public:
  void take(const Plan& plan, const Span& span, int list) {
    list_ = list;
    values_ = const_cast<float*>(load(plan, span, list, buffer_));
  }
  void put(const Plan& plan, const Span& span) const { store(plan, span, list_, values_, false); }
  void put_stochastically(const Plan& plan, const Span& span, uint32 key) const {
    store_stochastically(plan, span, list_, values_, key);
  }
  float* values() { return values_; }

 private:
  int list_ = 0;
  float* values_ = nullptr;
  float buffer_[kBlock];
};

template <class Rule>
void step_block(const Plan& plan, const Span& span, const StepInputs& inputs,
                const typename Rule::Coefficients& coefficients, bool stream) {
  constexpr int kParam = 1, kModel = 2 + Rule::kStates;
  const uint32 key = noise_key<Rule>(inputs, plan.positions[span.tensor]);
  float buffer[kBlock];
  InOut param, states[3];
  const float* grad = load(plan, span, 0, buffer);
  param.take(plan, span, kParam);
  for (int s = 0; s < Rule::kStates; ++s) states[s].take(plan, span, 2 + s);
  run_block<StepBlock<Rule>>(grad, param.values(), states[0].values(), states[1].values(),
                             states[2].values(), span, &coefficients);
  inputs.stochastic_rounding ? param.put_stochastically(plan, span, key) : param.put(plan, span);
  if (plan.address(span.tensor, kModel) != nullptr) {
    store(plan, span, kModel, param.values(), stream);
  }
  for (int s = 0; s < Rule::kStates; ++s) states[s].put_stochastically(plan, span, key);
}

Stepped stepped_at(const Plan& plan, const std::vector<HyperRow>& rows, int64 tensor) {
  return {plan.positions[tensor], &rows[plan.row(tensor)], plan.tag(tensor) != 0};
}

/// The coefficients of each tensor of the plan.
template <class Rule>
std::vector<typename Rule::Coefficients> all_coefficients(const Plan& plan,
                                                          const StepInputs& inputs,
                                                          const std::vector<HyperRow>& rows) {
  std::vector<typename Rule::Coefficients> all(plan.tensors());
  for (int64 t = 0; t < plan.tensors(); ++t) {
    const Stepped stepped = stepped_at(plan, rows, t);
    const bool shares = t > 0 && share_coefficients(inputs, stepped, stepped_at(plan, rows, t - 1));
    all[t] = shares ? all[t - 1] : coefficients<Rule>(inputs, stepped);
  }
  return all;
}

template <class Rule>
void step(const Plan& plan, const StepInputs& inputs, const std::vector<HyperRow>& rows) {
  constexpr int kModel = 2 + Rule::kStates;
  const auto coefficients = all_coefficients<Rule>(plan, inputs, rows);
  const bool large = streams(plan, kModel);
  for_each_piece_in_parallel(plan, [&](const Piece& piece) {
    const int64 head = large ? misaligned_head(plan, piece, kModel) : 0;
    for_each_block(piece, head, [&](const Span& span) {
      step_block<Rule>(plan, span, inputs, coefficients[span.tensor],
                       large && is_aligned(plan, span, kModel));
    });
  });
  for (int64 t = 0; t < plan.tensors(); ++t) finish_step<Rule>(inputs, stepped_at(plan, rows, t));
}

}  // namespace

void step(Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
          const std::vector<HyperRow>& rows, uint32*) {
  if (skips(inputs)) return;
  switch (algorithm) {
#define TORCHAMP_CASE(Name, name) \
  case Algorithm::k##Name:        \
    return step<Name>(plan, inputs, rows);
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
}

}  // namespace torchamp::cpu

#include "clip/clip.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/autograd_meta.h"
#include "ops/clip_factors.h"
#include "ops/unscale_pass.h"

namespace torchamp::core {
namespace {

using at::Tensor;
using ClippedStates = std::vector<OptimizerState*>;

/// A float32 scalar.
Tensor norm_of(const std::vector<Tensor>& tensors, double type) {
  if (type == 2 || tensors.empty()) return std::get<0>(ops::l2norm(tensors));
  std::vector<Tensor> norms;
  for (const Tensor& tensor : tensors) {
    const bool is_low = c10::isReducedFloatingType(tensor.scalar_type());
    const at::ScalarType dtype = is_low ? at::kFloat : tensor.scalar_type();
    norms.push_back(at::linalg_vector_norm(tensor, type, {}, false, dtype).to(at::kFloat));
  }
  return at::linalg_vector_norm(at::stack(norms), type);
}

/// Grads of one optimizer that are clipped by one factor: those that are kChecked, or unscaled
/// ones, of sparse ones the values.
struct Part {
  OptimizerState* state;  ///< null where there are no grads
  bool is_checked;
  std::vector<Tensor> unscaled;
  std::vector<Tensor> counted;  ///< of those, the ones that this rank counts
  bool is_shared = false;       ///< another optimizer, too, steps some of those

  Tensor norm(double type) const {
    if (is_checked) return state->grads().one_pass().norm();
    if (!counted.empty() || unscaled.empty()) return norm_of(counted, type);
    return at::zeros({}, unscaled.front().options().dtype(at::kFloat));
  }
  Tensor factor() const { return is_checked ? state->grads().one_pass().factor() : Tensor(); }
  void clip(const Tensor& factor, const Tensor& coefficient) const {
    if (is_checked) return state->grads().one_pass().set_factor(factor);
    if (!unscaled.empty()) at::_foreach_mul_(unscaled, if_stepped(coefficient));
  }
  /// 1 where the optimizer is to skip, but another that shares grads may step.
  Tensor if_stepped(const Tensor& coefficient) const {
    const Tensor skipped = is_shared ? state->overflows().found_inf() : Tensor();
    return skipped.defined() ? coefficient.masked_fill(skipped.gt(0), 1) : coefficient;
  }
};

/// Whether `state` is the first of `states` that steps it.
bool is_of(const OptimizerState& state, const ClippedStates& states, const Param& param) {
  const auto first = std::find_if(states.begin(), states.end(), [&](const OptimizerState* each) {
    return each == &state || each->steps(param);
  });
  return *first == &state;
}

/// A grad of several optimizers is in the part of the first.
Part unscaled_part(OptimizerState& state, const ClippedStates& states, const RanksOfShards& ranks) {
  Part part{&state, false, {}, {}, false};
  for (const auto& param : state.params()) {
    const Tensor& grad = grad_of(param->model);
    if (!param->grad.is_usable() || param->grad.state() == GradState::kChecked ||
        !is_of(state, states, *param))
      continue;
    part.unscaled.push_back(values_of(grad));
    part.is_shared |= param->users.size() > 1;
    const bool is_counted = ranks.counted_elsewhere.count(param->master.unsafeGetTensorImpl()) == 0;
    if (is_counted) part.counted.push_back(part.unscaled.back());
  }
  return part;
}

std::vector<Part> parts_of(const ClippedStates& states, const RanksOfShards& ranks) {
  std::vector<Part> parts;
  for (OptimizerState* state : states) {
    if (state->grads().one_pass().norm().defined()) parts.push_back({state, true, {}, {}, false});
    Part unscaled = unscaled_part(*state, states, ranks);
    if (!unscaled.unscaled.empty()) parts.push_back(std::move(unscaled));
  }
  if (parts.empty())
    parts.push_back({states.empty() ? nullptr : states.front(), false, {}, {}, false});
  return parts;
}

/// Not 0 if the next steps of all of them are to be skipped; undefined: they are not.
Tensor found_by_all(const ClippedStates& states) {
  Tensor all;
  for (const OptimizerState* state : states) {
    const Tensor& found_inf = state->overflows().found_inf();
    if (!found_inf.defined()) return {};
    all = all.defined() ? at::minimum(all, found_inf) : found_inf;
  }
  return all;
}

/// 0 where the optimizer is to skip, but not all of `states`: infinite grads must not make the
/// others' zero.
Tensor norm_if_stepped(const Part& part, double type, const ClippedStates& states) {
  const Tensor norm = part.norm(type);
  const Tensor skipped = states.size() < 2 ? Tensor() : part.state->overflows().found_inf();
  if (!skipped.defined()) return norm;
  const Tensor all_skip = found_by_all(states);
  const Tensor is_left_out = all_skip.defined() ? skipped.gt(all_skip) : skipped.gt(0);
  return norm.masked_fill(is_left_out, 0);
}

Tensor norm_of_parts(const std::vector<NormPart>& parts, double type) {
  std::vector<Tensor> norms;
  for (const NormPart& part : parts) norms.push_back(part.norm);
  return norm_of(norms, type);
}

/// In float64: a large float32 norm has no square.
Tensor norm_of_all(const Tensor& own, const RanksOfShards& ranks) {
  const Tensor square = own.to(at::kDouble).square();
  ranks.all_reduce_sum(square);
  return square.sqrt().to(at::kFloat);
}

/// The factors of this rank's parts by the norm of the parts of all.
ClipFactors factors_by(const Tensor& norm, const std::vector<NormPart>& parts, double max_norm) {
  ClipFactors factors = clip_factors({{norm, {}}}, max_norm);
  factors.clipped.clear();
  for (const NormPart& part : parts) {
    const Tensor& coefficient = factors.coefficient;
    factors.clipped.push_back(part.factor.defined() ? part.factor.mul(coefficient) : coefficient);
  }
  return factors;
}

/// Whether overflows that skip the step can only be among grads that are kChecked, whose norm
/// shows them.
bool shows_overflows(const ClippedStates& states) {
  return states.size() == 1 && states.front()->grads().one_pass().has_grads() &&
         !states.front()->overflows().are_shared();
}

/// Not finite where all of `states` are to skip, also by the grads of others.
Tensor norm_if_any_steps(const Tensor& norm, const ClippedStates& states) {
  const Tensor all_skip = shows_overflows(states) ? Tensor() : found_by_all(states);
  return all_skip.defined() ? norm.masked_fill(all_skip.gt(0), INFINITY) : norm;
}

void check_unscaled(const char* function, const ClippedStates& states) {
  for (OptimizerState* state : states) state->check_unscaled(function);
}

}  // namespace

Tensor clip_grad_norm(const ClippedStates& states, double max_norm, double norm_type,
                      const RanksOfShards& ranks) {
  at::NoGradGuard no_grad;
  check_unscaled("clip_grad_norm_", states);
  if (norm_type != 2) {
    for (OptimizerState* state : states) state->grads().unscale_checked();
  }
  const std::vector<Part> parts = parts_of(states, ranks);
  std::vector<NormPart> norms;
  for (const Part& part : parts) {
    norms.push_back({norm_if_stepped(part, norm_type, states), part.factor()});
  }
  ClipFactors factors = norm_type == 2
                            ? clip_factors(norms, max_norm)
                            : factors_by(norm_of_parts(norms, norm_type), norms, max_norm);
  if (ranks.all_reduce_sum) {
    factors = factors_by(norm_of_all(factors.norm, ranks), norms, max_norm);
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].clip(factors.clipped[i], factors.coefficient);
  return norm_if_any_steps(factors.norm, states);
}

void clip_grad_value(const ClippedStates& states, double clip_value) {
  at::NoGradGuard no_grad;
  check_unscaled("clip_grad_value_", states);
  for (OptimizerState* state : states) state->grads().unscale_checked();
  for (OptimizerState* state : states) {
    for (const Tensor& grad : unscaled_part(*state, states, {}).unscaled) {
      grad.clamp_(-clip_value, clip_value);
    }
  }
}

}  // namespace torchamp::core

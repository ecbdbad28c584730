#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <torchamp/detail/clip.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/unscale_pass.h"
#include "ops/clip_factors.h"

namespace torchamp::core {
namespace {

using at::Tensor;
using ClippedStates = std::vector<OptimizerState*>;

/// Grads that are clipped by one factor: deferred ones of an optimizer, or materialized ones (of
/// sparse ones the values) that the same optimizers step by.
struct Part {
  ClippedStates users;
  MasterGrads* deferred;
  std::vector<Tensor> materialized;
  std::vector<Tensor> counted;  ///< of those, the ones that this rank counts

  Tensor norm() const {
    if (deferred != nullptr) return deferred->norm_of_deferred();
    if (!counted.empty() || materialized.empty()) return std::get<0>(ops::l2norm(counted));
    return at::zeros({}, materialized.front().options().dtype(at::kFloat));
  }
  Tensor factor() const { return deferred != nullptr ? deferred->deferred_factor() : Tensor(); }
  void clip(const Tensor& factor, const Tensor& coefficient) const {
    if (deferred != nullptr) return deferred->set_deferred_factor(factor);
    if (!materialized.empty()) at::_foreach_mul_(materialized, coefficient);
  }
};

std::vector<Part> deferred_parts(const ClippedStates& states) {
  std::vector<Part> parts;
  for (OptimizerState* state : states) {
    const bool is_deferred = state->grads().norm_of_deferred().defined();
    if (is_deferred) parts.push_back({{state}, &state->grads(), {}, {}});
  }
  return parts;
}

/// The part of the optimizers among `states` that step `param`, which is added if it is new.
Part& part_of(const Tensor& param, const ClippedStates& states, std::vector<Part>& parts) {
  ClippedStates users;
  std::copy_if(states.begin(), states.end(), std::back_inserter(users),
               [&](const OptimizerState* state) { return state->steps(param); });
  const auto has_these = [&](const Part& part) { return part.users == users; };
  const auto found = std::find_if(parts.begin(), parts.end(), has_these);
  return found != parts.end() ? *found : parts.emplace_back(Part{users, nullptr, {}, {}});
}

/// Each grad once.
std::vector<Part> materialized_parts(const ClippedStates& states, const RanksOfShards& ranks = {}) {
  TensorSet seen;
  std::vector<Part> parts;
  for (const OptimizerState* state : states) {
    for (const Tensor& master : state->weights().master_params()) {
      if (!master.grad().defined() || !state->steps(master)) continue;
      if (!seen.insert(master.unsafeGetTensorImpl()).second) continue;
      Part& part = part_of(master, states, parts);
      part.materialized.push_back(values_of(master.grad()));
      const bool is_counted = ranks.counted_elsewhere.count(master.unsafeGetTensorImpl()) == 0;
      if (is_counted) part.counted.push_back(part.materialized.back());
    }
  }
  return parts;
}

std::vector<Part> parts_of(const ClippedStates& states, const RanksOfShards& ranks) {
  std::vector<Part> parts = deferred_parts(states);
  std::vector<Part> materialized = materialized_parts(states, ranks);
  std::move(materialized.begin(), materialized.end(), std::back_inserter(parts));
  if (parts.empty()) parts.push_back({states, nullptr, {}, {}});
  return parts;
}

/// Not 0 if the next steps of all of them are to be skipped; undefined: they are not.
Tensor found_by_all(const ClippedStates& states) {
  Tensor all;
  for (const OptimizerState* state : states) {
    const Tensor found_inf = state->found_inf();
    if (!found_inf.defined()) return {};
    all = all.defined() ? at::minimum(all, found_inf) : found_inf;
  }
  return all;
}

/// 0 where all users are to skip, but not all of `states`: infinite grads must not make the others'
/// zero.
Tensor norm_if_stepped(const Part& part, const ClippedStates& states) {
  const Tensor norm = part.norm();
  const Tensor skipped = part.users == states ? Tensor() : found_by_all(part.users);
  if (!skipped.defined()) return norm;
  const Tensor all_skip = found_by_all(states);
  const Tensor is_left_out = all_skip.defined() ? skipped.gt(all_skip) : skipped.gt(0);
  return norm.masked_fill(is_left_out, 0);
}

/// Whether an optimizer that is not among `states` steps some of their parameters.
bool share_with_others(const ClippedStates& states) {
  const auto is_other = [&](const OptimizerState* user) {
    return std::find(states.begin(), states.end(), user) == states.end();
  };
  return std::any_of(states.begin(), states.end(), [&](const OptimizerState* state) {
    const auto& users = state->masters().users;
    return std::any_of(users.begin(), users.end(), is_other);
  });
}

/// 1 where all of `states` are to skip: others may step by the grads that they share.
Tensor coefficient_if_stepped(const Tensor& coefficient, const ClippedStates& states) {
  const Tensor all_skip = share_with_others(states) ? found_by_all(states) : Tensor();
  return all_skip.defined() ? coefficient.masked_fill(all_skip.gt(0), 1) : coefficient;
}

void check_bound(const char* function, const char* argument, double bound) {
  TORCH_CHECK_VALUE(bound >= 0, function, ": expected ", argument, " to be at least 0, got ",
                    bound);
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

/// Whether overflows that skip its step can only be among its deferred grads, whose norm shows
/// them.
bool shows_overflows(const ClippedStates& states) {
  return states.size() == 1 && states.front()->grads().is_deferred() &&
         !states.front()->shares_overflows();
}

/// Not finite where all of `states` are to skip, also by the grads of others.
Tensor norm_if_any_steps(const Tensor& norm, const ClippedStates& states) {
  const Tensor all_skip = shows_overflows(states) ? Tensor() : found_by_all(states);
  return all_skip.defined() ? norm.masked_fill(all_skip.gt(0), INFINITY) : norm;
}

}  // namespace

Tensor clip_grad_norm(const ClippedStates& states, double max_norm, const RanksOfShards& ranks) {
  at::NoGradGuard no_grad;
  check_bound("clip_grad_norm_", "max_norm", max_norm);
  for (OptimizerState* state : states) state->check_unscaled("clip_grad_norm_");
  const std::vector<Part> parts = parts_of(states, ranks);
  std::vector<NormPart> norms;
  for (const Part& part : parts) norms.push_back({norm_if_stepped(part, states), part.factor()});
  ClipFactors factors = clip_factors(norms, max_norm);
  if (ranks.all_reduce_sum) {
    factors = factors_by(norm_of_all(factors.norm, ranks), norms, max_norm);
  }
  const Tensor coefficient = coefficient_if_stepped(factors.coefficient, states);
  for (size_t i = 0; i < parts.size(); ++i) parts[i].clip(factors.clipped[i], coefficient);
  return norm_if_any_steps(factors.norm, states);
}

void clip_grad_value(const ClippedStates& states, double clip_value) {
  at::NoGradGuard no_grad;
  check_bound("clip_grad_value_", "clip_value", clip_value);
  for (OptimizerState* state : states) {
    state->check_unscaled("clip_grad_value_");
    state->grads().materialize();
  }
  for (const Part& part : materialized_parts(states)) {
    for (const Tensor& grad : part.materialized) grad.clamp_(-clip_value, clip_value);
  }
}

}  // namespace torchamp::core

#include "core/skipped_grads.h"

#include <ATen/ops/minimum.h>
#include <torchamp/detail/optimizer_state.h>

#include <algorithm>
#include <iterator>

namespace torchamp::core {
namespace {

using at::Tensor;

bool is_any_to_step(const std::vector<const OptimizerState*>& users, const Tensor& param) {
  return std::any_of(users.begin(), users.end(), [&](const OptimizerState* user) {
    return user->is_to_step() && user->steps(param);
  });
}

std::vector<const OptimizerState*> others_than(const OptimizerState& state) {
  const auto& users = state.masters().users;
  std::vector<const OptimizerState*> others;
  std::copy_if(users.begin(), users.end(), std::back_inserter(others),
               [&](const OptimizerState* user) { return user != &state; });
  return others;
}

/// Which of the optimizer's parameters are their own masters; none if the host knows that
/// `skipped` is 0.
std::vector<size_t> own_masters(const OptimizerState& state, const Tensor& skipped) {
  std::vector<size_t> own;
  if (!skipped.defined() || (skipped.is_cpu() && skipped.item<float>() == 0.0f)) return own;
  const MasterWeights& weights = state.weights();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!weights.is_separate(i) && state.steps(weights.master_params()[i])) own.push_back(i);
  }
  return own;
}

/// If `skipped` is not 0, and the other optimizers of the parameter are to skip, too: all of them,
/// or those that are to step.
void discard(const OptimizerState& state, size_t i, Tensor skipped, bool of_all) {
  const Tensor& param = state.weights().master_params()[i];
  for (const OptimizerState* user : others_than(state)) {
    if (!user->steps(param) || !(of_all || user->is_to_step())) continue;
    const Tensor theirs = user->found_inf();
    if (!theirs.defined()) return;
    skipped = at::minimum(skipped, theirs);
  }
  state.grads().discard_if(skipped, i, /*keeps_zeros=*/of_all);
}

}  // namespace

void discard_skipped(const OptimizerState& state, const Tensor& skipped) {
  for (const size_t i : own_masters(state, skipped)) discard(state, i, skipped, /*of_all=*/false);
}

void discard_doomed(const OptimizerState& state) {
  const Tensor skipped = state.found_inf();
  for (const size_t i : own_masters(state, skipped)) {
    const bool is_narrow = state.weights().master_params()[i].element_size() == 2;
    if (is_narrow) discard(state, i, skipped, /*of_all=*/true);
  }
}

void drop_stepped(const OptimizerState& state) {
  const std::vector<const OptimizerState*> others = others_than(state);
  const Tensor skipped = state.found_inf();
  for (const size_t i : state.weights().separate()) {
    const Tensor& master = state.weights().master_params()[i];
    if (!state.steps(master)) continue;
    if (!is_any_to_step(others, master)) {
      master.mutable_grad().reset();
    } else if (skipped.defined()) {
      discard(state, i, skipped, /*of_all=*/false);
    }
  }
}

std::vector<Tensor> without_shared(const OptimizerState& state, const std::vector<Tensor>& params) {
  std::vector<const OptimizerState*> others = others_than(state);
  const auto skips = [](const OptimizerState* user) {
    return user->is_to_step() && user->has_overflowed();
  };
  others.erase(std::remove_if(others.begin(), others.end(), skips), others.end());
  std::vector<Tensor> unshared;
  std::copy_if(params.begin(), params.end(), std::back_inserter(unshared),
               [&](const Tensor& param) { return !is_any_to_step(others, param); });
  return unshared;
}

}  // namespace torchamp::core

// The part of Amp that creates the optimizers' masters and synchronizes them with the models.
#include <torchamp/amp_state.h>
#include <torchamp/cast.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "frontend/device_grads.h"

namespace torchamp {
namespace {

/// An optimizer's state is keyed by its parameter, so it moves when the parameter is replaced.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to) {
  auto& state = optimizer.state();
  const auto found = state.find(from.unsafeGetTensorImpl());
  if (found == state.end()) return;
  auto moved = std::move(found->second);
  state.erase(found);
  state[to.unsafeGetTensorImpl()] = std::move(moved);
}

bool have_a_common_param(
    const std::vector<std::reference_wrapper<torch::optim::Optimizer>>& optimizers) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (torch::optim::Optimizer& optimizer : optimizers) {
    std::unordered_set<const c10::TensorImpl*> own;
    for (const auto& param : params_of(optimizer)) own.insert(param.unsafeGetTensorImpl());
    const size_t expected = seen.size() + own.size();
    seen.merge(own);
    if (seen.size() < expected) return true;
  }
  return false;
}

}  // namespace

void WrappedOptimizer::refuse() const {
  state->refuse(params_of(*wrapped));
}

void WrappedOptimizer::end_own_step(const std::vector<LossScaler*>& scalers) const {
  if (fused != nullptr && fused->take_stepped()) state->end_step(scalers);
}

void Amp::wrap(const std::vector<std::reference_wrapper<torch::optim::Optimizer>>& optimizers) {
  const bool apart = !have_a_common_param(optimizers);
  for (torch::optim::Optimizer& optimizer : optimizers) {
    if (apart || masters_.empty()) masters_.push_back(std::make_shared<core::Masters>());
    optimizers_.emplace_back(optimizer, masters_.back());
  }
}

void Amp::make_masters() {
  if (!properties_.master_weights.value_or(false) || !properties_.cast_model_type) return;
  std::unordered_set<const c10::TensorImpl*> stepped;
  for (const auto& optimizer : optimizers_) {
    for (const auto& param : params_of(*optimizer.wrapped)) {
      stepped.insert(param.unsafeGetTensorImpl());
    }
  }
  for (const auto& model : models_) {
    for (const auto& param : params_to_cast(*model, *properties_.cast_model_type,
                                            properties_.keep_batchnorm_fp32.value_or(false))) {
      if (stepped.count(param.unsafeGetTensorImpl()) == 0) continue;
      master_of_.emplace(param.unsafeGetTensorImpl(), MasterWeights::make_master(param));
    }
  }
}

void Amp::adopt_groups(WrappedOptimizer& optimizer, size_t first_group) {
  const bool keeps_masters = properties_.master_weights.value_or(false);
  auto& groups = optimizer.wrapped->param_groups();
  for (size_t g = first_group; g < groups.size(); ++g) {
    for (at::Tensor& param : groups[g].params()) {
      at::Tensor master = master_of(param);
      if (!master.defined() && keeps_masters && c10::isReducedFloatingType(param.scalar_type())) {
        master = master_of_[param.unsafeGetTensorImpl()] = MasterWeights::make_master(param);
      }
      optimizer.masters().track(param, master);
      stepped_.insert((master.defined() ? master : param).unsafeGetTensorImpl());
      optimizer.state->add_param(master.defined() ? master : param);
      if (!master.defined()) continue;
      move_state(*optimizer.wrapped, param, master);
      param = master;
    }
  }
  if (optimizer.weights().is_split()) optimizer.masters().split();
}

at::Tensor Amp::master_of(const at::Tensor& model_param) const {
  const auto found = master_of_.find(model_param.unsafeGetTensorImpl());
  return found == master_of_.end() ? at::Tensor() : found->second;
}

/// The Masters that have the master of a parameter; null if it has no separate one.
MasterWeights* Amp::weights_of(const at::Tensor& model_param) {
  for (auto& optimizer : optimizers_) {
    const at::Tensor master = optimizer.weights().master_of(model_param);
    if (master.defined() && !master.is_same(model_param)) return &optimizer.weights();
  }
  return nullptr;
}

at::Tensor Amp::master_value(const at::Tensor& model_param) {
  const MasterWeights* weights = weights_of(model_param);
  return weights == nullptr ? at::Tensor() : weights->master_value(model_param);
}

void Amp::set_master_value(const at::Tensor& model_param, const at::Tensor& value) {
  MasterWeights* weights = weights_of(model_param);
  if (weights != nullptr) weights->set_master_value(model_param, value);
}

void Amp::refresh() {
  for (auto& optimizer : optimizers_) {
    optimizer.state->refresh();
  }
}

bool Amp::is_stepped(const at::Tensor& param) const {
  const auto tracks = [&](const auto& masters) {
    return masters->weights.master_of(param).defined();
  };
  return stepped_.count(param.unsafeGetTensorImpl()) > 0 ||
         std::any_of(masters_.begin(), masters_.end(), tracks);
}

}  // namespace torchamp

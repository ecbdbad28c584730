// The part of Amp that creates the optimizers' masters and synchronizes them with the models.
#include <torchamp/amp_state.h>
#include <torchamp/cast.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "checkpoint/float32_saves.h"
#include "frontend/device_grads.h"
#include "frontend/wrapped.h"

namespace torchamp {
namespace {

size_t count_params(const torch::optim::Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
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

void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to) {
  auto& state = optimizer.state();
  const auto found = state.find(from.unsafeGetTensorImpl());
  if (found == state.end()) return;
  auto moved = std::move(found->second);
  state.erase(found);
  state[to.unsafeGetTensorImpl()] = std::move(moved);
}

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
    for (const auto& param :
         params_to_cast(*model, *properties_.cast_model_type,
                        properties_.keep_batchnorm_fp32.value_or(false), options_.keep_fp32())) {
      if (stepped.count(param.unsafeGetTensorImpl()) == 0) continue;
      master_of_.emplace(param.unsafeGetTensorImpl(), MasterWeights::make_master(param));
    }
  }
}

WrappedOptimizer& Amp::optimizer(size_t index) {
  WrappedOptimizer& optimizer = optimizers_[index];
  if (!enabled()) return optimizer;
  check_not_released();
  TORCH_CHECK(is_alive(optimizer),
              "Optimizer: expected the optimizer that initialize was given to hold its parameters, "
              "but it was destroyed, moved or emptied; keep it where it is, or let initialize own "
              "it: initialize(model, std::move(optimizer), opt_level)");
  if (count_params(*optimizer.wrapped) != optimizer.num_params) adopt_params(optimizer);
  return optimizer;
}

/// LibTorch's optimizers do not say when they are destroyed, but then nobody else has the masters.
bool Amp::is_alive(const WrappedOptimizer& optimizer) const {
  constexpr size_t kOwnReferences = 2;  // of master_of_ and MasterWeights
  const MasterWeights& weights = optimizer.weights();
  const auto is_stepped = [&](size_t i) {
    return weights.master_params()[i].use_count() > kOwnReferences;
  };
  const auto& separate = weights.separate();
  return (separate.empty() || std::any_of(separate.begin(), separate.end(), is_stepped)) &&
         (optimizer.num_params == 0 || !optimizer.wrapped->param_groups().empty());
}

void Amp::check_is_new(const at::Tensor& param) const {
  const auto tracks = [&](const auto& masters) {
    return masters->weights.master_of(param).defined();
  };
  const bool is_stepped = stepped_.count(param.unsafeGetTensorImpl()) > 0 ||
                          std::any_of(masters_.begin(), masters_.end(), tracks);
  TORCH_CHECK(!is_stepped,
              "Optimizer::add_param_group: expected parameters that are in no group yet, got one "
              "of sizes ",
              param.sizes(), " that an optimizer of this initialize steps already");
}

void Amp::adopt_params(WrappedOptimizer& optimizer) {
  const bool was_initialized = optimizer.num_params > 0;
  for (const auto& param : params_of(*optimizer.wrapped)) {
    if (was_initialized && !optimizer.state->steps(param)) check_is_new(param);
  }
  for (auto& group : optimizer.wrapped->param_groups()) {
    for (at::Tensor& param : group.params()) {
      if (!optimizer.state->steps(param)) param = adopt(optimizer, param);
    }
  }
  optimizer.num_params = count_params(*optimizer.wrapped);
  checkpoint::save_in_float32(optimizer.weights().model_params(), masters_of(optimizer));
}

std::shared_ptr<core::Masters> Amp::masters_of(const WrappedOptimizer& optimizer) const {
  const auto are_its = [&](const auto& masters) { return masters.get() == &optimizer.masters(); };
  return *std::find_if(masters_.begin(), masters_.end(), are_its);
}

/// What the optimizer is to step in the place of `param`.
at::Tensor Amp::adopt(WrappedOptimizer& optimizer, const at::Tensor& param) {
  at::Tensor master = master_of(param);
  const bool is_low_precision = c10::isReducedFloatingType(param.scalar_type());
  if (!master.defined() && properties_.master_weights.value_or(false) && is_low_precision) {
    master = master_of_[param.unsafeGetTensorImpl()] = MasterWeights::make_master(param);
  }
  optimizer.masters().track(param, master);
  const at::Tensor& stepped = master.defined() ? master : param;
  stepped_.insert(stepped.unsafeGetTensorImpl());
  optimizer.state->add_param(stepped);
  if (master.defined()) move_state(*optimizer.wrapped, param, master);
  return stepped;
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

at::Tensor Amp::value(const at::Tensor& tensor) {
  const MasterWeights* weights = weights_of(tensor);
  if (weights != nullptr) return weights->master_value(tensor);
  const bool is_narrow = c10::isReducedFloatingType(tensor.scalar_type());
  return is_narrow ? tensor.detach().to(at::kFloat) : tensor.detach();
}

void Amp::set_value(const at::Tensor& tensor, const at::Tensor& value) {
  MasterWeights* weights = weights_of(tensor);
  if (weights != nullptr) weights->set_master_value(tensor, value);
  at::Tensor(tensor).copy_(value);
  mark_synced(tensor);
}

void Amp::mark_synced(const at::Tensor& tensor) {
  MasterWeights* weights = weights_of(tensor);
  if (weights != nullptr) weights->mark_synced(tensor);
}

void Amp::refresh() {
  check_not_released();
  for (auto& optimizer : optimizers_) {
    optimizer.state->refresh();
  }
}

}  // namespace torchamp

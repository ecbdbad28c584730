// The part of Session that creates the optimizers' masters and synchronizes them with the models.
#include <torchamp/cast.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "checkpoint/float32_saves.h"
#include "frontend/device_grads.h"
#include "frontend/lifetime.h"
#include "frontend/session.h"
#include "report/late_report.h"

namespace torchamp {
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to) {
  auto& state = optimizer.state();
  const auto found = state.find(from.unsafeGetTensorImpl());
  if (found == state.end()) return;
  auto moved = std::move(found->second);
  state.erase(found);
  state[to.unsafeGetTensorImpl()] = std::move(moved);
}

void Session::check_owners() const {
  if (!keeps_masters()) return;
  std::unordered_map<const c10::TensorImpl*, size_t> owners;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    for (const at::Tensor& param : params_of(*optimizers_[i].wrapped)) {
      const auto known = core::param_of(param);
      if (known != nullptr) optimizers_[i].state->check_free("initialize", *known);
      const auto [owner, is_first] = owners.emplace(param.unsafeGetTensorImpl(), i);
      TORCH_CHECK_VALUE(is_first || owner->second == i || !is_cast(param), "initialize: expected ",
                        "parameter \"", name_of(param),
                        "\", which gets a float32 master, in one optimizer, got it in optimizers[",
                        owner->second, "] and optimizers[", i,
                        "]; make one optimizer with two groups, or train in phases: "
                        "torchamp::release(model), then initialize with the other optimizer");
    }
  }
}

std::unordered_set<const c10::TensorImpl*> Session::stepped() const {
  std::unordered_set<const c10::TensorImpl*> stepped;
  for (const auto& optimizer : optimizers_) {
    for (const auto& param : params_of(*optimizer.wrapped)) {
      stepped.insert(param.unsafeGetTensorImpl());
    }
  }
  return stepped;
}

bool Session::keeps_masters() const {
  return properties_.master_weights.value_or(false);
}

std::vector<at::Tensor> Session::params_to_cast(torch::nn::Module& model) const {
  if (!properties_.cast_model_type) return {};
  return torchamp::params_to_cast(model, *properties_.cast_model_type,
                                  properties_.keep_batchnorm_fp32.value_or(false),
                                  options_.keep_fp32());
}

bool Session::is_cast(const at::Tensor& param) const {
  return std::any_of(models_.begin(), models_.end(), [&](const auto& model) {
    const auto cast = params_to_cast(*model);
    return std::any_of(cast.begin(), cast.end(),
                       [&](const at::Tensor& each) { return each.is_same(param); });
  });
}

Session::Masters Session::make_masters() const {
  Masters masters;
  if (!keeps_masters()) return masters;
  const auto stepped = this->stepped();
  for (const auto& model : models_) {
    for (const auto& param : params_to_cast(*model)) {
      if (stepped.count(param.unsafeGetTensorImpl()) == 0) continue;
      masters.emplace(param.unsafeGetTensorImpl(), core::make_master(param));
    }
  }
  return masters;
}

WrappedOptimizer& Session::optimizer(size_t index) {
  if (enabled()) check_not_released();
  WrappedOptimizer& optimizer = living_optimizer(index);
  if (enabled() && !optimizer.is_current()) follow_groups(optimizer);
  return optimizer;
}

WrappedOptimizer& Session::living_optimizer(size_t index) {
  WrappedOptimizer& optimizer = optimizers_[index];
  if (!optimizer.is_alive()) {  // its masters must not bind the next optimizer
    optimizer.wrapped = nullptr;
    optimizer.state = std::make_shared<core::OptimizerState>(/*shows_grads=*/false);
  }
  TORCH_CHECK(optimizer.wrapped != nullptr,
              "Optimizer: expected the optimizer that initialize was given to hold its parameters, "
              "but it was destroyed, moved or emptied; keep it where it is, or let initialize own "
              "it: initialize(model, std::move(optimizer), opt_level)");
  return optimizer;
}

bool WrappedOptimizer::is_alive() const {
  if (wrapped == nullptr || life.expired()) return false;
  return state->params().empty() || !wrapped->param_groups().empty();
}

WrappedOptimizer::WrappedOptimizer(torch::optim::Optimizer& optimizer)
    : wrapped(&optimizer),
      life(lifetime_of(optimizer)),
      fused(dynamic_cast<optim::FusedOptimizer*>(&optimizer)),
      report(std::make_shared<LateReport>()) {
  state = std::make_shared<core::OptimizerState>(/*shows_grads=*/false, report);
}

bool WrappedOptimizer::is_current() const {
  size_t i = 0;
  for (const auto& group : wrapped->param_groups()) {
    for (const at::Tensor& param : group.params()) {
      if (!state->steps_at(i++, param)) return false;
    }
  }
  return i == state->params().size();
}

/// Puts masters in the groups instead of the model's parameters. `masters`: the masters of
/// parameters that were just cast.
void Session::follow_groups(WrappedOptimizer& optimizer, const Masters& masters) {
  for (const auto& other : optimizers_) {
    const bool may_let_go = &other != &optimizer && other.is_alive();
    if (may_let_go) other.state->let_go(params_of(*other.wrapped));
  }
  for (auto& group : optimizer.wrapped->param_groups()) {
    for (at::Tensor& param : group.params()) param = adopt(optimizer, param, masters);
  }
  optimizer.state->retain("Optimizer", params_of(*optimizer.wrapped));
  checkpoint::save_in_float32(optimizer.state->model_params());
}

at::Tensor Session::adopt(WrappedOptimizer& optimizer, const at::Tensor& param,
                          const Masters& masters) {
  const auto found = masters.find(param.unsafeGetTensorImpl());
  at::Tensor master = found == masters.end() ? at::Tensor() : found->second;
  const bool is_low_precision = c10::isReducedFloatingType(param.scalar_type());
  const auto known = core::param_of(param);
  const bool is_new = !master.defined() && (known == nullptr || !known->has_master());
  if (is_new && keeps_masters() && is_low_precision) master = core::make_master(param);
  const at::Tensor stepped = optimizer.state->add("Optimizer", param, master);
  if (!stepped.is_same(param)) move_state(*optimizer.wrapped, param, stepped);
  return stepped;
}

void Session::set_value(const at::Tensor& tensor, const at::Tensor& value) {
  if (const auto param = core::param_of(tensor)) param->set_master(value);
  at::Tensor(tensor).copy_(value);
  mark_synced(tensor);
}

void Session::mark_synced(const at::Tensor& tensor) {
  if (const auto param = core::param_of(tensor)) param->mark_synced();
}

void Session::refresh() {
  check_not_released();
  for (auto& optimizer : optimizers_) optimizer.state->refresh();
}

}  // namespace torchamp

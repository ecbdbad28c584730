// The part of Session that creates the optimizers' masters and synchronizes them with the models.
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
  const at::Tensor master = found == masters.end() ? at::Tensor() : found->second;
  const bool keeps_masters = properties_.master_weights.value_or(false);
  const at::Tensor stepped = optimizer.state->add("Optimizer", param, master, keeps_masters);
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

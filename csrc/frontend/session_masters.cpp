// The part of Session that creates the optimizers' masters and synchronizes them with the models.
#include "checkpoint/float32_saves.h"
#include "frontend/device_grads.h"
#include "frontend/session.h"

namespace torchamp {
WrappedOptimizer& Session::optimizer(size_t index) {
  if (enabled()) check_not_released();
  WrappedOptimizer& optimizer = living_optimizer(index);
  if (!enabled()) return optimizer;
  optimizer.check_own_steps();
  if (!optimizer.is_current()) follow_groups(optimizer);
  return optimizer;
}

WrappedOptimizer& Session::living_optimizer(size_t index) {
  WrappedOptimizer& optimizer = optimizers_[index];
  if (!optimizer.is_alive()) {  // its masters must not bind the next optimizer
    optimizer.wrapped = nullptr;
    optimizer.state = std::make_shared<core::OptimizerState>(masters_);
  }
  TORCH_CHECK(optimizer.wrapped != nullptr,
              "Optimizer: expected the optimizer that initialize was given to hold its parameters, "
              "but it was destroyed or moved; keep it where it is, or let initialize own "
              "it: initialize(model, std::move(optimizer), opt_level)");
  return optimizer;
}

/// Steps what the groups hold now, with masters for what is new.
void Session::follow_groups(WrappedOptimizer& optimizer) {
  for (const auto& other : optimizers_) {
    const bool may_let_go = &other != &optimizer && other.is_alive();
    if (may_let_go) other.state->let_go(params_of(*other.wrapped));
  }
  core::OptimizerState& state = *optimizer.state;
  state.follow("Optimizer", params_of(*optimizer.wrapped));
  if (!state.warning().empty()) notices_.warn_once(state.warning());
  checkpoint::save_in_float32(core::models_of(state.params()));
}

void set_value(const at::Tensor& tensor, const at::Tensor& value) {
  if (const auto param = core::param_of(tensor)) param->set_master(value);
  at::Tensor(tensor).copy_(value);
  mark_synced(tensor);
}

void mark_synced(const at::Tensor& tensor) {
  if (const auto param = core::param_of(tensor)) param->mark_synced();
}

void Session::refresh() {
  look_at_steps();
  for (const auto& optimizer : optimizers_) core::refresh(optimizer.state->params());
}

void Session::publish() {
  look_at_steps();
  for (const auto& optimizer : optimizers_) core::check_and_publish(optimizer.state->params());
}

/// Finds steps of the wrapped optimizers, which masters must not follow.
void Session::look_at_steps() {
  check_not_released();
  for (auto& optimizer : optimizers_) {
    if (optimizer.is_alive()) optimizer.check_own_steps();
    optimizer.note_writes();
  }
}

}  // namespace torchamp

#include <torchamp/detail/step.h>
#include <torchamp/initialize.h>
#include <torchamp/optim/fused_optimizer.h>
#include <torchamp/optimizer.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "frontend/device_grads.h"
#include "frontend/skip_messages.h"
#include "frontend/wrapped.h"

namespace torchamp {
namespace {

bool may_take_closure(Amp& amp, const core::OptimizerState& state) {
  if (!amp.enabled()) return true;
  const auto& scalers = amp.loss_scalers();
  const auto is_identity = [](const LossScaler& scaler) { return scaler.is_identity(); };
  return !state.has_masters() && std::all_of(scalers.begin(), scalers.end(), is_identity);
}

/// LibTorch's own is not virtual, and drops options that it does not know.
void add_group(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group) {
  auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer);
  fused != nullptr ? fused->add_param_group(group) : optimizer.add_param_group(group);
}

/// As they are now. The program may keep references to the masters.
void show_grads(core::OptimizerState& state) {
  state.set_lazy(false);
  state.show_grads();
}

}  // namespace

/// Whether it stepped, as far as the host knows.
bool Optimizer::step_unless_overflowed() {
  const WrappedOptimizer& optimizer = wrapped_of(*this);
  core::OptimizerState& state = *optimizer.state;
  const bool is_fused = optimizer.fused != nullptr;
  const bool waits = !is_fused || state.found_inf().is_cpu();
  const bool skips = waits && state.may_have_overflowed() && state.has_overflowed();
  if (is_fused) {
    optimizer.fused->step_masters(state);
  } else if (!skips) {
    optimizer.wrapped->step();
  }
  return !skips;
}

bool Optimizer::step() {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  ShieldFromAutocast shield;
  if (!amp_->enabled()) {
    optimizer.wrapped->step();
    return true;
  }
  for (size_t i = 0; i < optimizer.observers.size(); ++i) {
    if (const auto observer = optimizer.observers[i].lock()) observer->before_step();
  }
  core::Step step(optimizer.state, amp_->scalers(), optimizer.fused != nullptr);
  step.begin("Optimizer::step");
  if (!optimizer.state->doubt().empty()) amp_->warn_once(optimizer.state->doubt());
  const bool stepped = step_unless_overflowed();
  step.finish();
  optimizer.backwards = 0;
  check_skipped_steps(*amp_, optimizer);
  return stepped;
}

at::Tensor Optimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  const WrappedOptimizer& optimizer = wrapped_of(*this);
  TORCH_CHECK(may_take_closure(*amp_, *optimizer.state),
              "Optimizer::step: expected no closure at opt_level ",
              name(amp_->properties().opt_level),
              ", where the loss is scaled or masters are stepped; run the backward in scale_loss, "
              "then call step(). Optimizers that need a closure, such as LBFGS, work at O0");
  std::optional<ShieldFromAutocast> shield(std::in_place);
  return optimizer.wrapped->step([&] {
    shield.reset();
    at::Tensor loss = closure();
    shield.emplace();
    return loss;
  });
}

void Optimizer::zero_grad(bool set_to_none) {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  optimizer.wrapped->zero_grad(set_to_none);
  optimizer.state->zero_grad(set_to_none);
}

void Optimizer::add_param_group(torch::optim::OptimizerParamGroup group) {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  for (const at::Tensor& param : group.params()) {
    const auto known = core::param_of(param);
    TORCH_CHECK(known == nullptr || !optimizer.state->steps(*known),
                "Optimizer::add_param_group: expected parameters that are in no group yet, got one "
                "of sizes ",
                param.sizes(), " that the optimizer steps already");
    if (known != nullptr) optimizer.state->check_free("Optimizer::add_param_group", *known);
  }
  add_group(*optimizer.wrapped, group);
  wrapped_of(*this);
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  show_grads(*wrapped_of(*this).state);
  return wrapped().param_groups();
}

torch::optim::Optimizer& Optimizer::wrapped() const {
  if (amp_->is_released()) return *amp_->optimizers()[index_].wrapped;
  return *wrapped_of(*this).wrapped;
}

std::vector<at::Tensor> Optimizer::master_params() const {
  show_grads(*wrapped_of(*this).state);
  return params_of(wrapped());
}

void refresh_masters(const Optimizer& optimizer) {
  for (const auto& param : wrapped_of(optimizer).state->params()) param->overwrite_master();
}

}  // namespace torchamp

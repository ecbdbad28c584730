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

bool may_take_closure(Amp& amp, const MasterWeights& weights) {
  if (!amp.enabled()) return true;
  const auto& scalers = amp.loss_scalers();
  const auto is_identity = [](const LossScaler& scaler) { return scaler.is_identity(); };
  return !weights.has_masters() && std::all_of(scalers.begin(), scalers.end(), is_identity);
}

/// LibTorch's own is not virtual, and drops options that it does not know.
void add_group(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group) {
  auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer);
  fused != nullptr ? fused->add_param_group(group) : optimizer.add_param_group(group);
}

}  // namespace

bool Optimizer::step_fused() {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  optimizer.fused->take_skip();
  const at::Tensor skip = optimizer.state->found_inf();
  optimizer.fused->step_masters(optimizer.state->grads(), skip);
  return !(skip.defined() && skip.is_cpu() && skip.item<float>() != 0.0f);
}

bool Optimizer::step_or_skip() {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  if (optimizer.state->is_refused()) {
    optimizer.refuse();
    return false;
  }
  optimizer.wrapped->step();
  optimizer.weights().copy_to_model();
  return true;
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
  optimizer.end_own_step(amp_->scalers());
  optimizer.state->begin_step("Optimizer::step", amp_->options().adopt_data_writes());
  if (!optimizer.state->doubt().empty()) amp_->warn_once(optimizer.state->doubt());
  const bool stepped = optimizer.fused != nullptr ? step_fused() : step_or_skip();
  optimizer.state->end_step(amp_->scalers());
  check_skipped_steps(*amp_, optimizer);
  return stepped;
}

at::Tensor Optimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  const WrappedOptimizer& optimizer = wrapped_of(*this);
  TORCH_CHECK(may_take_closure(*amp_, optimizer.weights()),
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
  if (optimizer.fused != nullptr) optimizer.fused->take_skip();
}

void Optimizer::add_param_group(torch::optim::OptimizerParamGroup group) {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  for (const at::Tensor& param : group.params()) amp_->check_is_new(param);
  add_group(*optimizer.wrapped, group);
  wrapped_of(*this);
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  wrapped_of(*this).state->grads().set_lazy(false);
  return wrapped().param_groups();
}

torch::optim::Optimizer& Optimizer::wrapped() const {
  if (amp_->is_released()) return *amp_->optimizers()[index_].wrapped;
  return *wrapped_of(*this).wrapped;
}

MasterWeights& Optimizer::master_weights() const {
  return wrapped_of(*this).weights();
}

std::vector<at::Tensor> Optimizer::master_params() const {
  wrapped_of(*this).state->grads().set_lazy(false);
  return params_of(wrapped());
}

}  // namespace torchamp

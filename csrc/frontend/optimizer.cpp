#include <torchamp/optim/fused_optimizer.h>
#include <torchamp/optimizer.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "frontend/device_grads.h"
#include "frontend/skip_messages.h"

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
  WrappedOptimizer& optimizer = amp_->optimizers()[index_];
  optimizer.fused->take_skip();
  const at::Tensor skip = optimizer.state->found_inf();
  optimizer.fused->step_masters(optimizer.state->grads(), skip);
  return !(skip.defined() && skip.is_cpu() && skip.item<float>() != 0.0f);
}

bool Optimizer::step_or_skip() {
  WrappedOptimizer& optimizer = amp_->optimizers()[index_];
  if (optimizer.state->is_refused()) {
    optimizer.refuse();
    return false;
  }
  optimizer.wrapped->step();
  optimizer.weights().copy_to_model();
  return true;
}

bool Optimizer::step() {
  WrappedOptimizer& optimizer = amp_->optimizers()[index_];
  ShieldFromAutocast shield;
  if (!amp_->enabled()) {
    optimizer.wrapped->step();
    return true;
  }
  optimizer.end_own_step(amp_->scalers());
  optimizer.state->begin_step("Optimizer::step", amp_->options().adopt_data_writes());
  if (!optimizer.state->doubt().empty()) TORCH_WARN(optimizer.state->doubt());
  const bool stepped = optimizer.fused != nullptr ? step_fused() : step_or_skip();
  optimizer.state->end_step(amp_->scalers());
  check_skipped_steps(*amp_, optimizer);
  return stepped;
}

at::Tensor Optimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  const WrappedOptimizer& optimizer = amp_->optimizers()[index_];
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
  WrappedOptimizer& optimizer = amp_->optimizers()[index_];
  optimizer.wrapped->zero_grad(set_to_none);
  optimizer.state->zero_grad(set_to_none);
  if (optimizer.fused != nullptr) optimizer.fused->take_skip();
}

void Optimizer::add_param_group(torch::optim::OptimizerParamGroup group) {
  WrappedOptimizer& optimizer = amp_->optimizers()[index_];
  for (const at::Tensor& param : group.params()) {
    TORCH_CHECK(!amp_->is_stepped(param),
                "Optimizer::add_param_group: expected parameters that are in no group yet, got one "
                "of sizes ",
                param.sizes(), " that an optimizer of this initialize steps already");
  }
  const size_t first_new = optimizer.wrapped->param_groups().size();
  add_group(*optimizer.wrapped, group);
  if (amp_->enabled()) amp_->adopt_groups(optimizer, first_new);
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  amp_->optimizers()[index_].state->grads().set_lazy(false);
  return wrapped().param_groups();
}

torch::optim::Optimizer& Optimizer::wrapped() const {
  return *amp_->optimizers()[index_].wrapped;
}

MasterWeights& Optimizer::master_weights() const {
  return amp_->optimizers()[index_].weights();
}

std::vector<at::Tensor> Optimizer::master_params() const {
  amp_->optimizers()[index_].state->grads().set_lazy(false);
  return params_of(wrapped());
}

}  // namespace torchamp

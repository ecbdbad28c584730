#include <torchamp/amp_state.h>
#include <torchamp/optim/fused_optimizer.h>
#include <torchamp/optimizer.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "device_grads.h"
#include "late_report.h"

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

void note_step(Amp& amp, const OptimizerState& state) {
  std::vector<LossScaler*> scalers;
  for (LossScaler& scaler : amp.loss_scalers()) scalers.push_back(&scaler);
  state.late_report->note(scalers);
  tell_skipped_steps(amp, state);
}

}  // namespace

bool Optimizer::step_fused() {
  OptimizerState& state = amp_->optimizers()[index_];
  const at::Tensor skip = state.fused->take_skip();
  state.fused->step_masters(state.weights, skip);
  amp_->drop_master_grads(state);
  const bool skipped = skip.defined() && skip.is_cpu() && skip.item<float>() != 0.0f;
  note_step(*amp_, state);
  return !skipped;
}

bool Optimizer::step() {
  OptimizerState& state = amp_->optimizers()[index_];
  ShieldFromAutocast shield;
  if (!amp_->enabled()) {
    state.wrapped->step();
    return true;
  }
  TORCH_CHECK(
      !state.weights.grads_are_scaled(),
      "Optimizer::step: expected unscaled grads, got those that scale_loss left scaled with "
      "delay_unscale; end with a scale_loss without it before the step");
  state.weights.refresh();
  if (amp_->options().adopt_data_writes()) state.weights.adopt_data_writes();
  const bool skipped = std::exchange(state.skip, false);
  state.may_have_stepped = false;
  if (state.fused != nullptr) return step_fused();
  if (skipped) {
    amp_->drop_grads(state);
    note_step(*amp_, state);
    return false;
  }
  state.wrapped->step();
  state.weights.copy_to_model();
  amp_->drop_master_grads(state);
  note_step(*amp_, state);
  return true;
}

at::Tensor Optimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  OptimizerState& state = amp_->optimizers()[index_];
  TORCH_CHECK(may_take_closure(*amp_, state.weights),
              "Optimizer::step: expected no closure at opt_level ",
              name(amp_->properties().opt_level),
              ", where the loss is scaled or masters are stepped; run the backward in scale_loss, "
              "then call step(). Optimizers that cannot do without one, as LBFGS, train at O0");
  std::optional<ShieldFromAutocast> shield(std::in_place);
  return state.wrapped->step([&] {
    shield.reset();
    at::Tensor loss = closure();
    shield.emplace();
    return loss;
  });
}

void Optimizer::zero_grad(bool set_to_none) {
  OptimizerState& state = amp_->optimizers()[index_];
  state.wrapped->zero_grad(set_to_none);
  state.weights.zero_model_grads(set_to_none);
  state.weights.set_grads_are_scaled(false);
  state.skip = false;
  state.late_report->clear();
  if (state.fused != nullptr) state.fused->take_skip();
}

void Optimizer::add_param_group(torch::optim::OptimizerParamGroup group) {
  OptimizerState& state = amp_->optimizers()[index_];
  for (const at::Tensor& param : group.params()) {
    TORCH_CHECK(!amp_->is_stepped(param),
                "Optimizer::add_param_group: expected parameters that are in no group yet, got one "
                "of sizes ",
                param.sizes(), " that an optimizer of this initialize steps already");
  }
  const size_t first_new = state.wrapped->param_groups().size();
  add_group(*state.wrapped, group);
  if (amp_->enabled()) amp_->adopt_groups(state, first_new);
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  master_weights().set_lazy(false);
  return wrapped().param_groups();
}

torch::optim::Optimizer& Optimizer::wrapped() const {
  return *amp_->optimizers()[index_].wrapped;
}

MasterWeights& Optimizer::master_weights() const {
  return amp_->optimizers()[index_].weights;
}

std::vector<at::Tensor> Optimizer::master_params() const {
  master_weights().set_lazy(false);
  return params_of(wrapped());
}

}  // namespace torchamp

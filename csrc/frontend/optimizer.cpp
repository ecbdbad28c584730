#include <torchamp/initialize.h>
#include <torchamp/optim/fused_optimizer.h>
#include <torchamp/optimizer.h>

#include <optional>
#include <utility>

#include "core/step.h"
#include "frontend/checkpoint/kinds.h"
#include "frontend/device_grads.h"
#include "frontend/graphed.h"
#include "frontend/optim/fused_steppers.h"
#include "frontend/session.h"
#include "frontend/skip_messages.h"

namespace torchamp {
namespace {

/// LibTorch's own is not virtual, and drops options that it does not know.
void add_group(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group) {
  auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer);
  fused != nullptr ? fused->add_param_group(group) : optimizer.add_param_group(group);
}

std::vector<LossScaler*> scalers_of(const Amp& amp) {
  std::vector<LossScaler*> scalers;
  for (LossScaler& scaler : amp.loss_scalers()) scalers.push_back(&scaler);
  return scalers;
}

/// Makes states of masters float32, as far as their class is known.
void prepare_states(Session& session, const WrappedOptimizer& optimizer) {
  optimizer.widen_states();
  if (optimizer.own_steps.has_stepped || !optimizer.has_unknown_states()) return;
  session.notices().warn_once(
      "Optimizer::step: expected states of parameters with masters to be float32, got states from "
      "before the first step of a class of optimizers that torchamp does not know, which stay as "
      "they are; initialize before they are made");
}

}  // namespace

/// Whether it stepped, as far as the host knows.
bool Optimizer::step_unless_overflowed() {
  const WrappedOptimizer& optimizer = wrapped_of(*this);
  core::OptimizerState& state = *optimizer.state;
  const bool is_fused = optimizer.fused != nullptr;
  const core::Overflows& overflows = state.overflows();
  const bool waits = !is_fused || overflows.found_inf().is_cpu();
  const bool skips = waits && overflows.may_be_any() && overflows.any();
  if (is_fused) {
    optimizer.fused->steppers()->step_masters(*optimizer.fused, state);
  } else if (!skips) {
    optimizer.wrapped->step();
  }
  return !skips;
}

bool Optimizer::step() {
  const auto held = amp_->session().hold_weights();
  WrappedOptimizer& optimizer = wrapped_of(*this);
  disable_casts shield;
  note_step(*this);
  if (!amp_->enabled()) {
    optimizer.wrapped->step();
    return true;
  }
  const PausedLoan paused(amp_->session());
  amp_->session().casts().forget_copies();
  prepare_states(amp_->session(), optimizer);
  core::Step step(optimizer.state, scalers_of(*amp_), optimizer.fused != nullptr);
  step.begin("Optimizer::step");
  const std::string& warning = optimizer.state->warning();
  if (!warning.empty()) amp_->session().notices().warn_once(warning);
  const bool stepped = step_unless_overflowed();
  const bool is_known = optimizer.fused == nullptr;
  step.finish(is_known ? std::optional<bool>(!stepped) : std::nullopt);
  optimizer.own_steps.has_stepped = true;
  optimizer.note_count();
  check_skipped_steps(amp_->session(), optimizer);
  return stepped;
}

at::Tensor Optimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  const WrappedOptimizer& optimizer = wrapped_of(*this);
  if (checkpoint::kind_of(*optimizer.wrapped) == nullptr) return step_by_closures(closure);
  at::Tensor loss;
  {
    const at::AutoGradMode grad_mode(true);
    loss = closure();
  }
  step();
  return loss;
}

/// By an optimizer that may call it several times, at points that it chooses.
at::Tensor Optimizer::step_by_closures(const torch::optim::Optimizer::LossClosure& closure) {
  const auto held = amp_->session().hold_weights();
  WrappedOptimizer& optimizer = wrapped_of(*this);
  for (const LossScaler& scaler : amp_->loss_scalers()) {
    TORCH_CHECK(!scaler.dynamic(),
                "Optimizer::step: expected a fixed loss scale for an optimizer that calls its "
                "closure several times, got a dynamic one, which skips steps; set "
                "Options::loss_scale, or take O4 or O5, which need none. With an optimizer that "
                "needs the grads once, run the backward in scale_loss, then call step()");
  }
  note_step(*this);
  const PausedLoan paused(amp_->session());
  amp_->session().casts().forget_copies();
  prepare_states(amp_->session(), optimizer);
  core::Step step(optimizer.state, scalers_of(*amp_), /*writes_model=*/false);
  std::optional<disable_casts> shield(std::in_place);
  step.begin("Optimizer::step");
  const at::Tensor loss = optimizer.wrapped->step([&] {
    step.pause();
    shield.reset();
    const at::Tensor found = closure();
    shield.emplace();
    step.begin("Optimizer::step");
    return found;
  });
  step.finish();
  optimizer.own_steps.has_stepped = true;
  optimizer.note_count();
  return loss;
}

void Optimizer::zero_grad(bool set_to_none) {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  optimizer.wrapped->zero_grad(set_to_none);
  optimizer.state->note_zeroed();
}

void Optimizer::add_param_group(torch::optim::OptimizerParamGroup group) {
  WrappedOptimizer& optimizer = wrapped_of(*this);
  for (const at::Tensor& param : group.params()) {
    const auto known = core::param_of(param);
    TORCH_CHECK(known == nullptr || !optimizer.state->steps(*known),
                "Optimizer::add_param_group: expected parameters that are in no group yet, got one "
                "of sizes ",
                param.sizes(), " that the optimizer steps already");
    if (known != nullptr) core::check_unowned("Optimizer::add_param_group", *known);
  }
  add_group(*optimizer.wrapped, group);
  wrapped_of(*this);
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  return wrapped_of(*this).wrapped->param_groups();
}

torch::optim::Optimizer& Optimizer::wrapped() const {
  Session& session = amp_->session();
  if (session.is_released()) return *session.living_optimizer(index_).wrapped;
  return *wrapped_of(*this).wrapped;
}

std::vector<at::Tensor> Optimizer::master_params() const {
  core::OptimizerState& state = *wrapped_of(*this).state;
  state.masters().bring_together(state.params());
  state.show_grads();
  return core::masters_of(state.params());
}

std::vector<Optimizer> detail::handles(const std::shared_ptr<Amp>& amp) {
  std::vector<Optimizer> optimizers;
  const size_t count = amp->session().optimizers().size();
  for (size_t i = 0; i < count; ++i) optimizers.emplace_back(amp, i);
  return optimizers;
}

void detail::own(const Amp& amp, std::shared_ptr<torch::optim::Optimizer> optimizer) {
  amp.session().optimizers().front().owned = std::move(optimizer);
}

void detail::release(const Amp& amp) {
  amp.session().release();
}

Amp& detail::common_amp(const char* function, const Amps& of_models, const Amps& of_optimizers) {
  TORCH_CHECK_VALUE(!of_models.empty(), function, ": expected at least one model, got none");
  for (const Amps& amps : {of_models, of_optimizers}) {
    for (const auto& amp : amps) {
      TORCH_CHECK_VALUE(amp == of_models.front(), function,
                        ": expected models and optimizers of one initialize, got those of two");
    }
  }
  return *of_models.front();
}

void refresh_masters(const Optimizer& optimizer) {
  for (const auto& param : wrapped_of(optimizer).state->params()) param->overwrite_master();
}

}  // namespace torchamp

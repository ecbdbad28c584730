
#include "core/step.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "ops/autograd_meta.h"

namespace torchamp::core {
namespace {

using at::Tensor;

constexpr const char* kLacksGrads =
    ": expected grads, got none, so nothing changes; run the backward, of a loss that reaches the "
    "optimizer's parameters, in scale_loss";

constexpr const char* kUnscaled =
    ": expected a backward in scale_loss before the first step, since the loss scale is dynamic, "
    "got grads of one outside of it, in which small numbers are lost to 16 bits; run it in "
    "scale_loss. If the program scales losses itself, give initialize a loss_scale of 1";

constexpr const char* kAssigned =
    ": expected grads of a backward in scale_loss, got grads that came after a scale_loss without "
    "one, and are not unscaled; assign those of the scaled loss in its scope, or assign those that "
    "torch.autograd.grad gives of the loss itself";

constexpr const char* kDataWritten =
    ": expected parameters to hold what initialize has left in them, or what was written in a way "
    "that PyTorch counts, got one of sizes ";

constexpr const char* kHowToWrite =
    " that was written through .data, which the step undoes; write it in "
    "amp.float32_params(model), in C++ amp::Float32Params, or initialize with adopt_data_writes";

}  // namespace

void Step::begin(const char* function) {
  OptimizerState& state = *state_;
  TORCH_CHECK(!state.is_in_backward(), function,
              ": expected the optimizer not to be inside an open scale_loss, but it is; "
              "step after it, where the grads are unscaled");
  state.update_grads();
  Grads& grads = state.grads();
  TORCH_CHECK(!grads.are_scaled(), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss with "
              "delay_unscale, as in no_sync(); run one without it before the step");
  grads.check_no_strays(function, /*set_aside=*/true);
  state.warning_.clear();
  const auto is_dynamic = [](const LossScaler* scaler) { return scaler->dynamic(); };
  const bool needs_scale = std::any_of(scalers_.begin(), scalers_.end(), is_dynamic);
  if (grads.are_missing()) {
    state.warn_once(std::string(function) + kLacksGrads);
  } else if (state.scaled_loss_ == OptimizerState::ScaledLoss::kWithoutGrads) {
    state.warn_once(std::string(function) + kAssigned);
  } else if (needs_scale && state.scaled_loss_ == OptimizerState::ScaledLoss::kNone) {
    state.warn_once(std::string(function) + kUnscaled);
  }
  if (const Param* param = state.written_before_first_step()) {
    std::ostringstream text;
    text << function << kDataWritten << param->model.sizes() << kHowToWrite;
    state.warn_once(text.str());
  }
  state.bring_together();
  if (writes_model_) return;
  grads.unscale_checked();
  borrow_ = std::make_unique<Borrow>(state.params(), LentGrads::kStep);
  borrow_->enter();
}

void Step::pause() {
  if (const auto borrow = std::exchange(borrow_, nullptr)) borrow->leave();
}

void Step::finish(std::optional<bool> overflowed) {
  pause();
  state_->end_step(scalers_, overflowed);
}

void step_by(OptimizerState& state, FusedStepper& stepper, const Tensor& skip) {
  const at::NoGradGuard no_grad;
  if (stepper.joins_norms()) state.grads().unscale_checked();
  const ParamList& params = state.params();
  const std::vector<Tensor>& stepped = stepper.params();
  Borrowed grads(stepped.size()), models(stepped.size());
  std::vector<int64_t> unscaled, scaled;
  size_t next = 0;
  for (size_t k = 0; k < stepped.size(); ++k) {
    const auto is_it = [&](const auto& param) { return param->master.is_same(stepped[k]); };
    if (next >= params.size() || !is_it(params[next]))
      next = std::find_if(params.begin(), params.end(), is_it) - params.begin();
    const Param& param = *params.at(next++);
    const bool is_checked = param.grad.state() == GradState::kChecked;
    if (is_checked) OnePass::check_not_written(param);
    if (!param.grad.is_usable()) continue;
    grads.set(k, grad_of(param.model));
    if (param.has_master() && !param.is_borrowed) models.set(k, param.model);
    (is_checked ? scaled : unscaled).push_back(static_cast<int64_t>(k));
  }
  if (unscaled.empty() && scaled.empty()) return;
  FusedStepper::StepInputs inputs;
  if (skip.defined()) inputs.skip = skip;
  if (scaled.empty()) unscaled.clear();
  if (!scaled.empty()) inputs.grad_factor = state.grads().one_pass().factor();
  stepper.step({grads, models, unscaled}, inputs);
  for (const auto& param : params) {
    if (param->has_master()) param->mark_synced();
  }
}

}  // namespace torchamp::core

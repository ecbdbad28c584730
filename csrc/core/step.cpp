
#include "core/step.h"

#include <utility>

namespace torchamp::core {
namespace {

constexpr const char* kLacksGrads =
    ": expected grads, got none, so nothing changes; run the backward, of a loss that reaches the "
    "optimizer's parameters, in scale_loss";

}  // namespace

void Step::begin(const char* function) {
  OptimizerState& state = *state_;
  TORCH_CHECK(!state.is_in_backward(), function,
              ": expected the optimizer not to be inside an open scale_loss, but it is; "
              "step after it, where the grads are unscaled");
  state.update_grads();
  TORCH_CHECK(!state.grads_are_scaled(), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss with "
              "delay_unscale, as in no_sync(); run one without it before the step");
  state.check_no_strays(function, /*set_aside=*/true);
  state.warning_.clear();
  if (state.lacks_grads()) state.warn_once(std::string(function) + kLacksGrads);
  state.bring_together();
  if (writes_model_) return;
  state.unscale();
  borrow_ = std::make_unique<Borrow>(state.params());
  borrow_->enter();
}

void Step::pause() {
  if (const auto borrow = std::exchange(borrow_, nullptr)) borrow->leave();
}

void Step::finish() {
  pause();
  state_->end_step(scalers_);
}

}  // namespace torchamp::core

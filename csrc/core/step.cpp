
#include "core/step.h"

#include <utility>

namespace torchamp::core {
namespace {

constexpr const char* kLacksGrads =
    ": expected grads, got none, so nothing changes; run the backward, of a loss that reaches the "
    "optimizer's parameters, in scale_loss";

}  // namespace

Step::~Step() {
  if (is_open_) leave();
}

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
  state.warn_once(state.lacks_grads() ? std::string(function) + kLacksGrads : "");
  state.refresh();
  if (state.adopts_data_writes()) {
    for (const auto& param : state.params()) param->adopt_data_writes();
  }
  if (!state.shows_grads()) state.lend_grads(true);
  is_open_ = true;
}

void Step::finish() {
  leave();
  state_->end_step(scalers_);
}

void Step::leave() {
  is_open_ = false;
  if (!writes_model_) copy_to_model(state_->params());
  if (!state_->shows_grads()) state_->lend_grads(false);
}

}  // namespace torchamp::core

#include "core/step.h"

#include <algorithm>
#include <utility>

namespace torchamp::core {

void Step::begin(const char* function) {
  const auto is_dynamic = [](const LossScaler* scaler) { return scaler->dynamic(); };
  state_->begin_step(function, std::any_of(scalers_.begin(), scalers_.end(), is_dynamic));
  state_->masters().bring_together(state_->params());
  if (writes_model_) return;
  state_->grads().unscale_checked();
  borrow_ = std::make_unique<Borrow>(state_->params(), LentGrads::kStep);
  borrow_->enter();
}

void Step::pause() {
  if (const auto borrow = std::exchange(borrow_, nullptr)) borrow->leave();
}

void Step::finish(std::optional<bool> overflowed) {
  pause();
  state_->end_step(scalers_, overflowed);
}

}  // namespace torchamp::core

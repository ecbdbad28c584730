#include "core/loan.h"

#include <utility>

namespace torchamp::core {

using at::Tensor;

Loan::Loan(std::shared_ptr<OptimizerState> state) : state_(std::move(state)) {}

Loan::Loan(std::shared_ptr<const Masters> masters, std::vector<Tensor> cast)
    : masters_(std::move(masters)), cast_(std::move(cast)) {}

void Loan::begin() {
  if (borrow_) return;
  if (state_ != nullptr) {
    if (!state_->is_in_backward()) state_->grads().unscale_checked();
    state_->masters().bring_together(state_->params());
    borrow_.emplace(state_->params(), LentGrads::kUsable);
  } else {
    masters_->bring_together(masters_->params());
    borrow_.emplace(masters_->params(), LentGrads::kNone);
  }
  borrow_->enter(cast_);
}

void Loan::end() {
  if (borrow_) borrow_->leave();
  borrow_.reset();
}

}  // namespace torchamp::core

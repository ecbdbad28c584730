#include <torchamp/float32_params.h>

#include "frontend/session.h"

namespace torchamp {

Float32Params::Float32Params(std::shared_ptr<Amp> amp)
    : amp_(std::move(amp)), loan_(amp_->session().lend()) {}

Float32Params::~Float32Params() = default;

std::shared_ptr<core::Loan> Session::lend() {
  if (!enabled() || is_released_ || is_lent()) return nullptr;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    if (optimizers_[i].is_alive()) optimizer(i);
  }
  auto loan = std::make_shared<core::Loan>(masters_, cast_without_master(*this));
  loan->begin();
  loan_ = loan;
  return loan;
}

PausedLoan::PausedLoan(Session& session) : loan_(session.loan()) {
  if (loan_ != nullptr) loan_->end();
}

PausedLoan::~PausedLoan() {
  try {
    if (loan_ != nullptr) loan_->begin();
  } catch (const std::exception&) {  // of a parameter that the step has moved, which others tell
  }
}

}  // namespace torchamp

#include <torchamp/detail/backward.h>

#include <algorithm>
#include <utility>

#include "core/late_report.h"

namespace torchamp::core {

using at::Tensor;
using States = std::vector<std::shared_ptr<OptimizerState>>;

Backward::Backward(States states, LossScaler& scaler, Options options)
    : states_(std::move(states)), scaler_(scaler), options_(options) {}

Backward::~Backward() {
  cancel();
}

bool Backward::is_needed(const States& states, const LossScaler& scaler) {
  return !scaler.is_identity() || std::any_of(states.begin(), states.end(), [](const auto& state) {
    return state->weights().has_masters();
  });
}

std::vector<MasterWeights*> Backward::distinct_weights() const {
  std::vector<MasterWeights*> distinct;
  for (const auto& state : states_) {
    MasterWeights* const weights = &state->weights();
    const bool is_new = std::find(distinct.begin(), distinct.end(), weights) == distinct.end();
    if (is_new) distinct.push_back(weights);
  }
  return distinct;
}

Tensor Backward::scale(const Tensor& loss) {
  if (scaled_by_ == nullptr) scaled_by_ = scaler_.snapshot();
  return scaler_.scale(loss, scaled_by_.get());
}

void Backward::prepare() {
  for (const auto& state : states_) {
    TORCH_CHECK(!state->is_in_backward(),
                "scale_loss: expected the optimizer to be in no other scale_loss that is still "
                "open, got one that is; close that one first, or scale the sum of the losses");
  }
  for (const auto& state : states_) state->refresh();
  if (scaled_by_ == nullptr) scaled_by_ = scaler_.snapshot();
  for (const auto& state : states_) state->backward_ = this;
  is_open_ = true;
  try {
    for (MasterWeights* weights : distinct_weights()) {
      settle(*weights);
      weights->prepare_backward();
    }
  } catch (...) {
    cancel();
    throw;
  }
}

/// Forgets what was zeroed or refused, and unscales what bears another scale than this backward's.
void Backward::settle(MasterWeights& weights) {
  const auto& users = weights.users_;
  for (OptimizerState* user : users) user->give_up_refused();
  if (weights.drop_zeroed()) {
    for (OptimizerState* user : users) user->clear_overflows();
  }
  if (weights.delayed() == nullptr) return;
  const MasterWeights::Scaled scaled = *weights.delayed();
  if (scaled.by->is_still(scaler_.loss_scale_tensor())) return;
  const Tensor found_inf = weights.finish_backward({scaled.by->loss_scale()});
  if (scaled.overflow == nullptr) return;
  scaled.overflow->add(found_inf);
  for (OptimizerState* user : users) user->gather_delayed(options_.loss_id, found_inf);
}

void Backward::close() {
  is_open_ = false;
  for (const auto& state : states_) state->backward_ = nullptr;
}

void Backward::cancel() {
  if (!is_open_) return;
  close();
  for (MasterWeights* weights : distinct_weights()) weights->cancel_backward();
}

void Backward::finish() {
  if (!is_open_) return;
  close();
  for (const auto& state : states_) state->is_to_step_ = true;
  const auto weights = distinct_weights();
  if (options_.delay_unscale) {
    const auto overflow = scaler_.dynamic() ? scaler_.deferred() : nullptr;
    for (MasterWeights* each : weights) each->delay_backward({scaled_by_, overflow});
    return;
  }
  const Tensor found_inf =
      finish_backward(weights, scaler_, *scaled_by_, !options_.delay_overflow_check);
  for (const auto& state : states_) {
    state->may_have_stepped_ = state->steps_unseen_ && !state->weights().lazy();
    if (!scaler_.dynamic()) continue;
    state->gather(options_.loss_id, found_inf);
    state->late_report().gather({options_.loss_id, scaler_.last_report(),
                                 state->weights().last_report(), options_.overflow_is_told});
  }
}

}  // namespace torchamp::core

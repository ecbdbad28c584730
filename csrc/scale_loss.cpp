#include <torchamp/amp_state.h>
#include <torchamp/scale_loss.h>

#include <algorithm>
#include <exception>

#include "late_report.h"

namespace torchamp {

scale_loss::scale_loss(const at::Tensor& loss, std::vector<Optimizer> optimizers,
                       ScaleLossOptions options)
    : optimizers_(std::move(optimizers)),
      options_(options),
      exceptions_(std::uncaught_exceptions()) {
  check_optimizers();
  amp_ = optimizers_.front().amp();
  scaled_loss_ = loss;
  if (!amp_->enabled()) return;
  LossScaler& scaler = amp_->loss_scaler(options.loss_id);
  if (tracks_grads()) scaled_by_ = scaler.lend();
  scaled_loss_ = scaler.scale(loss, scaled_by_.get());
  if (!tracks_grads()) return;
  check_backwards();
  for (const Optimizer& optimizer : optimizers_) tell_skipped_steps(*amp_, state_of(optimizer));
  amp_->refresh();
  for (MasterWeights* weights : distinct_weights()) {
    if (!options.delay_unscale && !weights->grads_are_scaled()) weights->prepare_backward();
  }
  for (const Optimizer& optimizer : optimizers_) state_of(optimizer).in_backward = true;
}

scale_loss::~scale_loss() noexcept(false) {
  if (done_) return;
  if (std::uncaught_exceptions() > exceptions_) {
    cancel();
  } else {
    finish();
  }
}

void scale_loss::check_optimizers() const {
  TORCH_CHECK_VALUE(!optimizers_.empty(), "scale_loss: expected at least one optimizer, got none");
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    TORCH_CHECK_VALUE(optimizers_[i].amp() == optimizers_.front().amp(),
                      "scale_loss: expected optimizers[", i,
                      "] to come from the initialize of optimizers[0], got one of another");
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK_VALUE(optimizers_[i].index() != optimizers_[j].index(),
                        "scale_loss: expected each optimizer once, got optimizers[", j,
                        "] again as optimizers[", i, "]");
    }
  }
}

void scale_loss::check_backwards() const {
  for (const Optimizer& optimizer : optimizers_) {
    const OptimizerState& state = state_of(optimizer);
    TORCH_CHECK(!state.in_backward,
                "scale_loss: expected the optimizer to be in no other scale_loss that is still "
                "open, got one that is; close that one first, or scale the sum of the losses");
    TORCH_CHECK(!state.weights.grads_are_scaled() || state.scaled_by == options_.loss_id,
                "scale_loss: expected the loss_id of the backward whose grads still wait for "
                "unscaling (delay_unscale), ",
                state.scaled_by, ", got ", options_.loss_id);
  }
}

OptimizerState& scale_loss::state_of(const Optimizer& optimizer) const {
  return amp_->optimizers()[optimizer.index()];
}

std::vector<MasterWeights*> scale_loss::distinct_weights() const {
  std::vector<MasterWeights*> distinct;
  for (const Optimizer& optimizer : optimizers_) {
    MasterWeights* const weights = &optimizer.master_weights();
    const bool is_new = std::find(distinct.begin(), distinct.end(), weights) == distinct.end();
    if (is_new) distinct.push_back(weights);
  }
  return distinct;
}

/// Where nothing is scaled and nothing has masters, the grads are right as autograd leaves them.
bool scale_loss::tracks_grads() const {
  if (!amp_->enabled()) return false;
  const auto has_masters = [](const Optimizer& o) { return o.master_weights().has_masters(); };
  return !amp_->loss_scaler(options_.loss_id).is_identity() ||
         std::any_of(optimizers_.begin(), optimizers_.end(), has_masters);
}

void scale_loss::backward(const at::Tensor& gradient, std::optional<bool> retain_graph,
                          bool create_graph) {
  const ShieldBackward shield(amp_->uses_autocast());
  scaled_loss_.backward(gradient, retain_graph, create_graph);
}

void scale_loss::cancel() {
  done_ = true;
  if (!tracks_grads()) return;
  close();
  for (MasterWeights* weights : distinct_weights()) weights->cancel_backward();
}

void scale_loss::close() {
  for (const Optimizer& optimizer : optimizers_) state_of(optimizer).in_backward = false;
}

void scale_loss::finish() {
  if (std::exchange(done_, true) || !tracks_grads()) return;
  close();
  if (options_.delay_unscale) {
    for (const Optimizer& optimizer : optimizers_) {
      state_of(optimizer).weights.set_grads_are_scaled(true);
      state_of(optimizer).scaled_by = options_.loss_id;
    }
    return;
  }
  unscale();
  if (amp_->loss_scaler(options_.loss_id).dynamic()) mark_overflowed();
}

void scale_loss::unscale() {
  const bool found_before_counts = amp_->unchecked().erase(options_.loss_id) > 0;
  finish_backward(distinct_weights(), amp_->loss_scaler(options_.loss_id), *scaled_by_,
                  found_before_counts, /*moves_scale=*/!options_.delay_overflow_check);
  for (const Optimizer& optimizer : optimizers_) {
    state_of(optimizer).may_have_stepped = !optimizer.master_weights().lazy();
  }
  if (options_.delay_overflow_check) amp_->unchecked().insert(options_.loss_id);
}

/// Our own optimizers skip on the device. LibTorch's pass over undefined grads, so for them an
/// overflow is undone by taking the grads away; to know of one is the step's only wait for the
/// device.
void scale_loss::mark_overflowed() {
  const LossScaler& scaler = amp_->loss_scaler(options_.loss_id);
  bool must_know = scaler.device().is_cpu();
  for (const Optimizer& optimizer : optimizers_) {
    optim::FusedOptimizer* const fused = state_of(optimizer).fused;
    if (fused != nullptr) fused->skip_if(scaler.found_inf());
    must_know |= fused == nullptr;
  }
  for (const Optimizer& optimizer : optimizers_) {
    const OptimizerState& state = state_of(optimizer);
    state.late_report->gather(
        {options_.loss_id, scaler.last_report(), state.weights.last_report(), must_know});
  }
  if (!must_know || scaler.found_inf().item<float>() == 0.0f) return;
  for (const Optimizer& optimizer : optimizers_) {
    if (state_of(optimizer).fused != nullptr) continue;
    amp_->drop_grads(state_of(optimizer));
    state_of(optimizer).skip = true;
  }
  if (amp_->options().verbosity() > 0) tell({options_.loss_id, scaler.loss_scale()});
}

}  // namespace torchamp

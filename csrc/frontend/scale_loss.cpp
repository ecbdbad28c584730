#include <torchamp/detail/backward.h>
#include <torchamp/scale_loss.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "frontend/skip_messages.h"
#include "frontend/wrapped.h"

namespace torchamp {
namespace {

/// Whether the host must know of an overflow immediately: LibTorch's optimizers do not skip on the
/// device.
bool must_know(const LossScaler& scaler, const std::vector<Optimizer>& optimizers) {
  return scaler.device().is_cpu() ||
         std::any_of(optimizers.begin(), optimizers.end(),
                     [](const Optimizer& o) { return wrapped_of(o).fused == nullptr; });
}

/// The optimizers of `amp` that are not among `given`.
std::vector<std::shared_ptr<core::OptimizerState>> others_of(Amp& amp,
                                                             const std::vector<Optimizer>& given) {
  std::vector<std::shared_ptr<core::OptimizerState>> others;
  for (const WrappedOptimizer& optimizer : amp.optimizers()) {
    const auto is_it = [&](const Optimizer& each) { return &wrapped_of(each) == &optimizer; };
    if (std::none_of(given.begin(), given.end(), is_it)) others.push_back(optimizer.state);
  }
  return others;
}

}  // namespace

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
  std::vector<std::shared_ptr<core::OptimizerState>> states;
  for (const Optimizer& optimizer : optimizers_) states.push_back(wrapped_of(optimizer).state);
  if (!core::Backward::is_needed(states, scaler)) {
    scaled_loss_ = scaler.scale(loss);
    return;
  }
  auto backward = std::make_unique<core::Backward>(
      states, scaler,
      core::Backward::Options{options.loss_id, options.delay_unscale, options.delay_overflow_check},
      others_of(*amp_, optimizers_));
  scaled_loss_ = backward->scale(loss);
  for (const Optimizer& optimizer : optimizers_) {
    wrapped_of(optimizer).end_own_step(amp_->scalers());
    check_skipped_steps(*amp_, wrapped_of(optimizer));
  }
  backward->prepare();
  backward_ = std::move(backward);
}

scale_loss::~scale_loss() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) {
    cancel();
  } else {
    finish();
  }
}

void scale_loss::check_optimizers() const {
  TORCH_CHECK_VALUE(!optimizers_.empty(), "scale_loss: expected at least one optimizer, got none");
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    TORCH_CHECK_VALUE(
        optimizers_[i].amp() == optimizers_.front().amp(), "scale_loss: expected optimizers[", i,
        "] to come from the initialize of optimizers[0], got one from another initialize");
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK_VALUE(optimizers_[i].index() != optimizers_[j].index(),
                        "scale_loss: expected each optimizer once, got optimizers[", j,
                        "] again as optimizers[", i, "]");
    }
  }
}

void scale_loss::backward(const at::Tensor& gradient, std::optional<bool> retain_graph,
                          bool create_graph) {
  const ShieldBackward shield(amp_->uses_autocast());
  scaled_loss_.backward(gradient, retain_graph, create_graph);
}

void scale_loss::cancel() {
  backward_.reset();
}

void scale_loss::finish() {
  const auto backward = std::exchange(backward_, nullptr);
  if (backward == nullptr) return;
  backward->finish();
  if (options_.delay_unscale || !amp_->loss_scaler(options_.loss_id).dynamic()) return;
  take_overflow_in();
}

/// Fused optimizers skip on the device. LibTorch's skip undefined grads, so for them an overflow
/// drops the grads; detecting one is the step's only wait for the device.
void scale_loss::take_overflow_in() {
  const LossScaler& scaler = amp_->loss_scaler(options_.loss_id);
  const at::Tensor& found_inf = scaler.found_inf();
  const bool overflowed = must_know(scaler, optimizers_) && found_inf.item<float>() != 0.0f;
  for (const Optimizer& optimizer : optimizers_) {
    const WrappedOptimizer& each = wrapped_of(optimizer);
    const at::Tensor gathered = each.state->found_inf();
    if (each.fused != nullptr) {
      each.fused->skip_if(gathered);
    } else if (gathered.is_same(found_inf) ? overflowed : each.state->has_overflowed()) {
      each.refuse();
    }
  }
}

}  // namespace torchamp

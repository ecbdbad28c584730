#include <torchamp/scale_loss.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/backward.h"
#include "frontend/dtype_errors.h"
#include "frontend/session.h"
#include "frontend/skip_messages.h"

namespace torchamp {
namespace {

/// Looks for what the states of the wrapped optimizer cannot tell: LibTorch's SGD counts no steps.
/// Waits for the device, in the second backward of a program that has not stepped yet.
void count_backward(Session& session, WrappedOptimizer& optimizer) {
  optimizer.note_writes();
  OwnSteps& own = optimizer.own_steps;
  if (own.has_stepped) return;
  const auto& params = optimizer.state->params();
  if (++own.backwards == 1) core::refresh(params);  // with what was written before
  if (own.backwards != 2) return;
  const bool has_data_writes = std::any_of(params.begin(), params.end(), [](const auto& param) {
    return param->has_master() && !param->is_rounded_master();
  });
  if (!own.has_writes && !has_data_writes) return;
  session.notices().warn_once(
      "scale_loss: expected step() of the optimizer that initialize returned, got a second "
      "backward without one, and parameters that the program has written; the wrapped optimizer's "
      "step() steps 16-bit parameters, and does not skip after an overflow");
}

std::string explanation(const char* message) {
  switch (dtype_error(message)) {
    case DtypeError::kHook:
      return "backward: a hook of a tensor has to return its grad in the dtype that it came in, "
             "which is that of the tensor, and a mask or factor in float32 widens it; write "
             "mask.to(grad.dtype())";
    case DtypeError::kMixed:
      return "backward: an op of the forward has got tensors of two dtypes; cast one of them, as "
             "target.to(output.dtype()), or under autocast call a torch::autograd::Function by "
             "amp::half_function or amp::float_function";
    default:
      return "";
  }
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
  auto backward = std::make_unique<core::Backward>(
      states, scaler,
      core::BackwardOptions{options.loss_id, options.delay_unscale, options.delay_overflow_check});
  scaled_loss_ = backward->scale(loss);
  for (const Optimizer& optimizer : optimizers_) {
    count_backward(amp_->session(), wrapped_of(optimizer));
    check_skipped_steps(amp_->session(), wrapped_of(optimizer));
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
  const ShieldBackward shield;
  try {
    scaled_loss_.backward(gradient, retain_graph, create_graph);
  } catch (...) {
    rethrow_explained(explanation);
  }
}

void scale_loss::cancel() {
  backward_.reset();
}

void scale_loss::finish() {
  const auto backward = std::exchange(backward_, nullptr);
  if (backward == nullptr) return;
  backward->finish();
  if (*backward->warning() != '\0') amp_->session().notices().warn_once(backward->warning());
}

}  // namespace torchamp

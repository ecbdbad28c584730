// Between stages 6 and 7: clipping the grads of the next step.
#pragma once

#include <torchamp/detail/misuse.h>
#include <torchamp/optimizer.h>

#include <type_traits>
#include <vector>

namespace torchamp {
namespace detail {

/// Allows what is neither an Optimizer nor several.
template <class T>
using IfNotStepped = std::enable_if_t<!are_optimizers<const T&>, int>;

}  // namespace detail

/// @addtogroup step
/// @{

/// Scales the grads that `optimizers` step by so that their total norm_type-norm, of all together,
/// is at most `max_norm`. Returns the norm before clipping, a float32 scalar on the device, without
/// waiting for it. Call it between the last scale_loss and the step. If master grads are not
/// materialized, clipping by the 2-norm costs no pass. Grads that only skipped steps would use do
/// not count; if all steps are to be skipped, the norm is not finite. At O0 without a loss scale,
/// and where amp is not enabled, this is LibTorch's own to the last bit, and waits.
///
/// Throws ValueError without optimizers or for a max_norm that is negative or NaN, RuntimeError
/// where grads are still scaled.
TORCHAMP_API at::Tensor clip_grad_norm_(const std::vector<Optimizer>& optimizers, double max_norm,
                                        double norm_type = 2.0);
/// Scales the grads of one optimizer, as those of several.
TORCHAMP_API at::Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm,
                                        double norm_type = 2.0);

/// Clamps every element of the grads to [-clip_value, clip_value]. Call it between the last
/// scale_loss and the step. It materializes master grads. Throws as clip_grad_norm_.
TORCHAMP_API void clip_grad_value_(const std::vector<Optimizer>& optimizers, double clip_value);
/// Clamps the grads of one optimizer, as those of several.
TORCHAMP_API void clip_grad_value_(const Optimizer& optimizer, double clip_value);

/// @cond
template <class T, detail::IfNotStepped<T> = 0>
at::Tensor clip_grad_norm_(const T&, double, double = 2.0) {
  static_assert(detail::never<T>,
                "clip_grad_norm_ takes the optimizer that initialize returned, amped.optimizer, or "
                "several; torch::nn::utils::clip_grad_norm_ takes parameters");
  return {};
}
template <class T, detail::IfNotStepped<T> = 0>
void clip_grad_value_(const T&, double) {
  static_assert(
      detail::never<T>,
      "clip_grad_value_ takes the optimizer that initialize returned, amped.optimizer, or "
      "several; torch::nn::utils::clip_grad_value_ takes parameters");
}
/// @endcond

/// @}

}  // namespace torchamp

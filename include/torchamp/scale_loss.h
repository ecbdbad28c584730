// Stages 4 to 6 around a backward: scale the loss, unscale and check the grads, update the scale.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>
#include <torchamp/optimizer.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchamp {
/// @addtogroup scale
/// @{

namespace core {
class Backward;
}

namespace detail {

/// Allows what is not a loss and what initialize returned.
template <class Loss, class T>
using IfNotScaled =
    std::enable_if_t<!std::is_convertible_v<Loss, const at::Tensor&> || !are_optimizers<T>, int>;

}  // namespace detail

/// Which loss a backward is of, and whether it is the last before the step.
struct ScaleLossOptions {
  int64_t loss_id = 0;  ///< which of initialize's num_losses scalers
  /// Leave the grads scaled: the next scale_loss without it also unscales them.
  bool delay_unscale = false;
  bool delay_overflow_check =
      false;  ///< leave it to a later scale_loss of the same loss_id to update the scale
};

/// A guard around one backward.
///
///     {
///       amp::scale_loss scaled_loss(loss, optimizer);
///       scaled_loss.backward();
///     }                                            // grads unscaled and checked, scale updated
///
/// The end of the scope calls finish(). After an exception it restores the grads and the scaler
/// instead. After an overflow the grads show it, and the optimizers' next step() is skipped.
class TORCHAMP_API scale_loss {
 public:
  /// `loss`: a floating-point tensor that requires grad. Throws TypeError, IndexError for a loss_id
  /// beyond num_losses, and RuntimeError if an optimizer is inside an open scale_loss.
  [[nodiscard]] scale_loss(const at::Tensor& loss, Optimizer optimizer)
      : scale_loss(loss, std::vector<Optimizer>{std::move(optimizer)}, ScaleLossOptions()) {}
  /// `optimizers`: every one that steps a parameter which gets a grad in this backward; all of one
  /// initialize.
  [[nodiscard]] scale_loss(const at::Tensor& loss, std::vector<Optimizer> optimizers,
                           ScaleLossOptions options = {});
  /// Scales the loss of one optimizer.
  [[nodiscard]] scale_loss(const at::Tensor& loss, Optimizer optimizer, ScaleLossOptions options)
      : scale_loss(loss, std::vector<Optimizer>{std::move(optimizer)}, options) {}
  /// With the options' loss_id alone.
  [[nodiscard]] scale_loss(const at::Tensor& loss, Optimizer optimizer, int64_t loss_id)
      : scale_loss(loss, std::move(optimizer), ScaleLossOptions{loss_id}) {}
  /// Scales the loss of several optimizers.
  [[nodiscard]] scale_loss(const at::Tensor& loss, std::vector<Optimizer> optimizers,
                           int64_t loss_id)
      : scale_loss(loss, std::move(optimizers), ScaleLossOptions{loss_id}) {}

  /// The whole as one call: `amp::scale_loss(loss, optimizer, [](const at::Tensor& scaled_loss) {
  /// scaled_loss.backward(); })`.
  template <class Body, class = std::enable_if_t<std::is_invocable_v<Body, const at::Tensor&>>>
  scale_loss(const at::Tensor& loss, Optimizer optimizer, Body&& body)
      : scale_loss(loss, std::move(optimizer)) {
    run(body);
  }

  /// @cond
  template <class Loss, class T, class... Args, detail::IfNotScaled<Loss, T> = 0>
  scale_loss(Loss&&, T&&, Args&&...) : scale_loss(at::Tensor(), std::vector<Optimizer>()) {
    static_assert(detail::never<T>,
                  "scale_loss takes a loss and the optimizer that initialize returned, "
                  "scale_loss(loss, amped.optimizer), not the one that initialize was given");
  }
  template <class T = void>
  explicit scale_loss(const at::Tensor& loss) : scale_loss(loss, std::vector<Optimizer>()) {
    static_assert(detail::never<T>,
                  "scale_loss takes the optimizer too: scale_loss(loss, amped.optimizer)");
  }
  /// @endcond

  ~scale_loss() noexcept(false);
  scale_loss(const scale_loss&) = delete;
  scale_loss& operator=(const scale_loss&) = delete;

  /// The scaled loss's backward, outside O1's autocast.
  void backward(const at::Tensor& gradient = {}, std::optional<bool> retain_graph = std::nullopt,
                bool create_graph = false);
  /// loss · loss_scale, float32.
  const at::Tensor& tensor() const { return scaled_loss_; }
  /// Converts to the scaled loss, for functions that take a tensor.
  operator const at::Tensor&() const { return scaled_loss_; }

  /// Unscales, checks and updates now; the end of the scope then does nothing.
  void finish();

 private:
  template <class Body>
  void run(Body& body) {
    try {
      body(scaled_loss_);
    } catch (...) {
      cancel();
      throw;
    }
    finish();
  }

  void cancel();
  void check_optimizers() const;

  std::shared_ptr<Amp> amp_;
  std::vector<Optimizer> optimizers_;
  ScaleLossOptions options_;
  at::Tensor scaled_loss_;
  std::unique_ptr<core::Backward> backward_;  ///< null if there is nothing to do, or it is done
  int exceptions_;
};

/// @}

}  // namespace torchamp

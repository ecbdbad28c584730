// The GradScaler of torch.amp, for programs that scale losses themselves instead of calling
// initialize.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torchamp/detail/export.h>
#include <torchamp/detail/misuse.h>
#include <torchamp/loss_scaler.h>

#include <optional>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace torchamp {
/// @addtogroup grad_scaler
/// @{

class Optimizer;
namespace optim {
class FusedOptimizer;
}

/// The arguments of GradScaler by name, with chained setters like LibTorch's options:
/// `GradScalerOptions().init_scale(1024).enabled(use_amp)`.
class GradScalerOptions {
 public:
  GradScalerOptions() = default;
  /// The defaults except the scale to begin with, a number.
  template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
  GradScalerOptions(T init_scale) : init_scale_(static_cast<double>(init_scale)) {
    static_assert(!std::is_same_v<T, bool>,
                  "a bool is no scale: GradScaler(GradScalerOptions().enabled(use_amp))");
  }
  /// False: scale() returns what it is given, step() steps, and the rest does nothing.
  TORCHAMP_SETTING(GradScalerOptions, detail::Flag, bool, enabled, true);
  /// The scale to begin with.
  TORCH_ARG(double, init_scale) = 65536.0;
  /// Above 1: update() multiplies the scale by this after growth_interval clean iterations.
  TORCH_ARG(double, growth_factor) = 2.0;
  /// Between 0 and 1: update() multiplies the scale by this after an overflow.
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// The scale grows after this many iterations without an overflow.
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// Where the scale lives; by default on the device of the first output that is scaled.
  TORCH_ARG(std::optional<at::Device>, device);
};

/// A dynamic loss scale for any LibTorch optimizers, with torch.amp.GradScaler's methods.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);                      // only to inspect the grads, or to clip
///     torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
///     scaler.step(optimizer);                          // skips if a grad is not finite
///     scaler.update();
///
/// Grads may be of mixed dtypes, including float16, sparse, undefined, and on several devices.
/// Fused optimizers skip on the device; for others the host waits once, in step().
class TORCHAMP_API GradScaler {
 public:
  /// Throws ValueError unless growth_factor > 1 and 0 < backoff_factor < 1.
  explicit GradScaler(const GradScalerOptions& options = {});
  /// @cond
  template <class T, class U, class... Us>
  GradScaler(T, U, Us...) {
    static_assert(detail::never<T>,
                  "GradScaler takes its options by name: GradScaler(GradScalerOptions().init_scale("
                  "1024).growth_factor(2))");
  }
  /// @endcond
  /// Moves scale and checks. Not copyable: there is one scale.
  GradScaler(GradScaler&&) = default;
  /// Like the constructor.
  GradScaler& operator=(GradScaler&&) = default;

  /// Steps skip and scales back off by the overflows of all `ranks`, which must call the same
  /// methods: one all-reduce for each optimizer and iteration. Throws ValueError unless its rank is
  /// below its size.
  GradScaler& process_group(Agreement ranks);

  /// outputs · scale, on the autograd graph; of 16-bit outputs in float32. Throws TypeError unless
  /// `outputs` is a floating-point tensor.
  at::Tensor scale(const at::Tensor& outputs);
  /// Each of them scaled.
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the grads of the optimizer's parameters by the scale, in place, and checks them.
  /// Throws if they are unscaled or stepped since the last update() already.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales if unscale_() did not, and steps unless a grad is not finite. Fused optimizers
  /// unscale as they step and leave the grads as they are. Returns whether it stepped; true where
  /// only a GPU knows. Throws for a second step since the last update().
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends an iteration: backs off if a check since the last update() found a grad that is not
  /// finite, else counts towards growth. Does not wait for the device. Throws if nothing was
  /// checked.
  void update();
  /// Ends an iteration and sets the scale.
  void update(double new_scale);
  /// Ends an iteration and sets the scale to that of a tensor of one element, without waiting for
  /// the device. Throws ValueError for more elements or none.
  void update(const at::Tensor& new_scale);

  /// initialize's optimizers have their own scaler: use scale_loss.
  void unscale_(const Optimizer& optimizer) = delete;
  bool step(const Optimizer& optimizer) = delete;

  /// The optimizer's parameters in whose grads its last check, in this iteration or the one before,
  /// found a value that is not finite. Waits for the device.
  std::vector<at::Tensor> overflowed_params(torch::optim::Optimizer& optimizer) const;

  /// Reads the scale, 1 if not enabled. Waits for the device.
  double get_scale() const { return enabled_ ? scaler_.loss_scale() : 1.0; }
  /// update() multiplies the scale by this after growth_interval clean iterations.
  double get_growth_factor() const { return scaler_.rule().growth_factor; }
  /// update() multiplies the scale by this after an overflow.
  double get_backoff_factor() const { return scaler_.rule().backoff_factor; }
  /// The scale grows after this many iterations without an overflow.
  int64_t get_growth_interval() const { return scaler_.rule().growth_interval; }
  /// From the next update() on. Throws ValueError unless above 1.
  void set_growth_factor(double growth_factor);
  /// From the next update() on. Throws ValueError unless between 0 and 1.
  void set_backoff_factor(double backoff_factor);
  /// From the next update() on.
  void set_growth_interval(int64_t growth_interval);
  /// False: scale() returns what it is given, step() steps, and the rest does nothing.
  bool is_enabled() const { return enabled_; }

  /// Writes scale, factors, interval and growth tracker; nothing if not enabled. Waits for the
  /// device. torch::save(scaler, path) and torch::load(scaler, path) work too.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Does nothing if not enabled. Throws, and changes nothing, if an entry is missing.
  void load(torch::serialize::InputArchive& archive);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };

  /// The checks of an optimizer's grads since the last update().
  struct Checks {
    Stage stage = Stage::kReady;
    at::Tensor found_inf;                         ///< undefined if nothing was checked
    std::vector<at::Tensor> found_inf_per_param;  ///< uint8, one element per parameter; by device
  };
  using ChecksOf = std::unordered_map<const torch::optim::Optimizer*, Checks>;

  void place_on(at::Device device);
  void check_not_moved(const char* method) const;
  void check_scaled(const char* method) const;
  /// Unscales if given `inv_scale`, and checks.
  void look_at_grads(torch::optim::Optimizer& optimizer, Checks& checks,
                     const std::optional<at::Tensor>& inv_scale) const;
  bool step_or_skip(torch::optim::Optimizer& optimizer, Checks& checks);
  bool step_fused(optim::FusedOptimizer& optimizer, Checks& checks);
  void end_iteration();

  LossScaler scaler_;
  bool enabled_;
  bool is_placed_ = false;
  ChecksOf checks_;
  ChecksOf last_checks_;  ///< of the iteration that the last update() ended
};

/// For torch::save.
inline torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                   const GradScaler& scaler) {
  scaler.save(archive);
  return archive;
}

/// For torch::load.
inline torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                  GradScaler& scaler) {
  scaler.load(archive);
  return archive;
}

/// @}

}  // namespace torchamp

// Scoped autocast, and how other threads adopt it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>
#include <torchamp/detail/export.h>
#include <torchamp/detail/misuse.h>

#include <memory>
#include <optional>
#include <vector>

namespace torchamp {
/// @addtogroup autocast_ops
/// @{

class AppliedAutocast;

/// The autocast state of a thread, for all device types: of the scopes that the thread is in, and
/// of O1 or O4 if they are open in it.
class TORCHAMP_API AutocastState {
 public:
  /// Applies the captured state to the calling thread for a scope:
  /// `const auto casts = state.apply();`. The end of the scope restores the previous state.
  [[nodiscard]] AppliedAutocast apply() const;

 private:
  friend class autocast;
  friend class AppliedAutocast;
  struct Captured;

  AutocastState();

  std::shared_ptr<const Captured> captured_;
};

/// The arguments of autocast by name, with chained setters like LibTorch's options:
/// `AutocastOptions(torch::kHalf).enabled(use_amp)`.
class AutocastOptions {
 public:
  /// The device type's default dtype.
  AutocastOptions() = default;
  /// float16 or bfloat16.
  AutocastOptions(c10::ScalarType dtype) : dtype_(dtype) {}
  /// False: switches autocast off for the scope.
  TORCHAMP_SETTING(AutocastOptions, detail::Flag, bool, enabled, true);
  /// True: weights are cast once until the outermost scope ends. Off by default: such casts go
  /// stale when weights are edited. Within a disable_casts that switches float8 off, it is on.
  TORCHAMP_SETTING(AutocastOptions, detail::Flag, bool, cache_enabled, false);
  /// float16 or bfloat16; the device type's default if not given.
  TORCH_ARG(std::optional<c10::ScalarType>, dtype);
};

/// Scoped autocast for one device type in this thread, like torch.autocast: the end restores
/// the previous state, also after an exception. Threads that the program starts have their own
/// state: see capture_state().
class TORCHAMP_API autocast {
 public:
  /// options: those, or a dtype. Throws ValueError for a dtype other than float16 and bfloat16, and
  /// for device types without autocast.
  [[nodiscard]] explicit autocast(c10::DeviceType device_type, const AutocastOptions& options = {});
  /// By the device's type.
  [[nodiscard]] explicit autocast(c10::Device device, const AutocastOptions& options = {})
      : autocast(device.type(), options) {}
  /// @cond
  template <class T, std::enable_if_t<std::is_same_v<T, c10::ScalarType>, int> = 0>
  explicit autocast(T) {
    static_assert(detail::never<T>,
                  "autocast takes a device, and then a dtype: autocast(device, torch::kHalf)");
  }
  template <class D, class E, class... Es,
            std::enable_if_t<std::is_convertible_v<E, bool>, int> = 0>
  autocast(D, c10::ScalarType, E, Es...) {
    static_assert(detail::never<D>,
                  "autocast takes what is beside a dtype by name: autocast(device, "
                  "AutocastOptions(torch::kHalf).enabled(use_amp))");
  }
  /// @endcond
  ~autocast();
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;

  /// This thread's current state, for worker threads:
  ///
  ///     const auto casts = amp::autocast::capture_state();
  ///     std::thread worker([&] {
  ///       const auto scope = casts.apply();
  ///       …
  ///     });
  static AutocastState capture_state();

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

/// The scope that AutocastState::apply() begins.
class TORCHAMP_API AppliedAutocast {
 public:
  /// Applies `state`, as `state.apply()` does.
  explicit AppliedAutocast(const AutocastState& state);
  ~AppliedAutocast();
  AppliedAutocast(const AppliedAutocast&) = delete;
  AppliedAutocast& operator=(const AppliedAutocast&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

/// A scope in which O1 and O4 cast nothing in this thread, and no product is in float8: backwards,
/// optimizer steps and models of other levels run in one. Python's amp.disable_casts(). A scoped
/// autocast of the program stays active, but for those that checkpoints open in a backward to cast
/// as the forward did.
class TORCHAMP_API disable_casts {
 public:
  [[nodiscard]] disable_casts();
  ~disable_casts();
  disable_casts(const disable_casts&) = delete;
  disable_casts& operator=(const disable_casts&) = delete;

  /// The device types whose autocast it switched off.
  const std::vector<c10::DeviceType>& disabled() const { return disabled_; }

 private:
  std::vector<c10::DeviceType> disabled_;
  bool turns_float8_off_ = false;
};

/// @}

}  // namespace torchamp

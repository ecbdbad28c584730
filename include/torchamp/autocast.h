// Scoped autocast, and how other threads adopt it.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torchamp/detail/export.h>

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

/// Scoped autocast for one device type in this thread, like torch.autocast: the end restores
/// the previous state, also after an exception. Threads that the program starts have their own
/// state: see capture_state().
class TORCHAMP_API autocast {
 public:
  /// dtype: float16 or bfloat16; the device type's default if not given. The weight-cast cache is
  /// off by default: it goes stale when weights are edited. If on, it is cleared when the outermost
  /// scope ends. `enabled` false switches autocast off for the scope. Throws ValueError for another
  /// dtype, and for device types without autocast.
  [[nodiscard]] explicit autocast(c10::DeviceType device_type,
                                  std::optional<c10::ScalarType> dtype = {}, bool enabled = true,
                                  bool cache_enabled = false);
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

/// A scope in which O1 and O4 cast nothing in this thread: backwards, optimizer steps and models of
/// other levels run in one. Python's amp.disable_casts(). A scoped autocast of the program stays
/// active, but for those that checkpoints open in a backward to cast as the forward did.
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
};

/// @}

}  // namespace torchamp

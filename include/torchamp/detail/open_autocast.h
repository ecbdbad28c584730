// O1's and O4's autocast: what initialize opens in a thread, and who joins it or is shielded from
// it.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torchamp/detail/export.h>

#include <memory>
#include <optional>
#include <vector>

namespace torchamp {
/// @addtogroup autocast_ops
/// @{

/// Autocast from now until closed, in the thread that opened it: what O1 is. Several can be open,
/// for the same dtype. Losses, criteria and methods other than forward are covered, as in apex, and
/// on CPU and CUDA all ops of apex's lists, where torch's are shorter.
class TORCHAMP_API OpenAutocast {
 public:
  /// Throws if this thread has one open with another dtype.
  OpenAutocast(std::vector<c10::DeviceType> device_types, c10::ScalarType dtype);
  ~OpenAutocast();
  OpenAutocast(const OpenAutocast&) = delete;
  OpenAutocast& operator=(const OpenAutocast&) = delete;

  /// May be called from any thread, and more than once. In another thread than the opening one it
  /// takes effect there at the next call of settle().
  void close();

  /// Makes this thread's autocast state agree with what is still open.
  static void settle();

  /// What one has opened, for all threads that join it.
  struct Entry;
  /// What several have opened.
  using Entries = std::vector<std::shared_ptr<Entry>>;
  /// What this thread casts by: its own, and what it has joined.
  static Entries open_in_this_thread();

 private:
  friend class JoinAutocast;
  std::shared_ptr<Entry> entry_;
};

/// For the time of a scope, casts in this thread as in the thread that opened `opened`: forwards of
/// its models in threads of DataParallel, or of the program's own, run in it. Does nothing once
/// `opened` is closed, in a thread that has opened one itself, under a shield, and for device types
/// that an autocast scope of the thread has switched off.
class TORCHAMP_API JoinAutocast {
 public:
  /// Remembers this thread's state until the end of the scope.
  explicit JoinAutocast(const OpenAutocast& opened);
  /// The same for all that a thread casts by.
  explicit JoinAutocast(const OpenAutocast::Entries& opened);
  ~JoinAutocast();
  JoinAutocast(const JoinAutocast&) = delete;
  JoinAutocast& operator=(const JoinAutocast&) = delete;

 private:
  OpenAutocast::Entries joined_;
};

/// What OpenAutocast casts tensors of `device_type` to in this thread at this moment; nothing where
/// none is open, or where it is switched off.
TORCHAMP_API std::optional<c10::ScalarType> casting_to(c10::DeviceType device_type);

/// For the time of a scope, undoes what OpenAutocast does to this thread: backwards, optimizer
/// steps and models of other levels run in it. A torch.autocast context that the user entered keeps
/// its effect.
class TORCHAMP_API ShieldFromAutocast {
 public:
  [[nodiscard]] ShieldFromAutocast();
  ~ShieldFromAutocast();
  ShieldFromAutocast(const ShieldFromAutocast&) = delete;
  ShieldFromAutocast& operator=(const ShieldFromAutocast&) = delete;

  /// The device types whose autocast it switched off.
  const std::vector<c10::DeviceType>& disabled() const { return disabled_; }

 private:
  std::vector<c10::DeviceType> disabled_;
};

/// A ShieldFromAutocast around a backward, which its threads can lift by CastInBackward if
/// `was_cast` says that the forward was cast.
class TORCHAMP_API ShieldBackward {
 public:
  /// `was_cast`: whether the forward ran under O1 or O4.
  explicit ShieldBackward(bool was_cast);

 private:
  ShieldFromAutocast shield_;
  std::optional<c10::DebugInfoGuard> info_;
};

/// Lifts the ShieldBackward of the backward that this thread works for: what a program wrote itself
/// runs in it, as Python's autograd functions, and is cast as in the forward.
class TORCHAMP_API CastInBackward {
 public:
  CastInBackward();
  ~CastInBackward();
  CastInBackward(const CastInBackward&) = delete;
  CastInBackward& operator=(const CastInBackward&) = delete;

 private:
  struct Before {
    c10::DeviceType device_type;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<Before> before_;
  bool cache_before_;
};

/// @}

}  // namespace torchamp

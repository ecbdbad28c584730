// O1 and O4: ops cast their inputs by the dispatcher's autocast.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torchamp/export.h>

#include <memory>
#include <optional>
#include <vector>

namespace torchamp {

/// Scoped autocast for one device type in this thread, as torch.autocast: everything is restored at
/// the end, exceptions included. The weight-cast cache is off by default: it goes stale when
/// weights are edited.
class TORCHAMP_API autocast {
 public:
  explicit autocast(c10::DeviceType device_type, std::optional<c10::ScalarType> dtype = {},
                    bool enabled = true, bool cache_enabled = false);
  ~autocast();
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;

 private:
  c10::DeviceType device_type_;
  bool enabled_before_;
  c10::ScalarType dtype_before_;
  bool cache_before_;
};

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

  struct Entry;

 private:
  std::shared_ptr<Entry> entry_;
};

/// What OpenAutocast casts tensors of `device_type` to in this thread at this moment; nothing where
/// none is open, or where it is switched off.
TORCHAMP_API std::optional<c10::ScalarType> casting_to(c10::DeviceType device_type);

/// For the time of a scope, undoes what OpenAutocast does to this thread: backwards, optimizer
/// steps and models of other levels run in it. A torch.autocast context that the user entered keeps
/// its effect.
class TORCHAMP_API ShieldFromAutocast {
 public:
  ShieldFromAutocast();
  ~ShieldFromAutocast();
  ShieldFromAutocast(const ShieldFromAutocast&) = delete;
  ShieldFromAutocast& operator=(const ShieldFromAutocast&) = delete;

 private:
  std::vector<c10::DeviceType> disabled_;
};

}  // namespace torchamp

// O1's and O4's autocast: initialize opens it in a thread; others join it or are shielded from it.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torchamp/autocast.h>

#include <memory>
#include <optional>
#include <vector>

namespace torchamp {

/// The dispatch key of threads in which float8 is open: that of other libraries' devices, which
/// comes before O4's casts. torch suspends it with autocast, so that graphs of torch.compile run
/// without it; they run with DeferredInit and torch's testing keys, which would do otherwise.
constexpr auto kFloat8Key = c10::DispatchKey::AutocastPrivateUse1;
static_assert(kFloat8Key > c10::DispatchKey::AutocastCUDA &&
                  kFloat8Key > c10::DispatchKey::AutocastCPU,
              "O4's casts would hide the weights");

/// Autocast from now until closed, in the thread that opened it: the casts of O1. Several can be
/// open, for the same dtype. Losses, criteria and methods other than forward are covered, as in
/// apex, and on CPU and CUDA all ops of apex's lists, where torch's are shorter.
class TORCHAMP_API OpenAutocast {
 public:
  /// Throws if this thread has one open with another dtype. A float8 dtype: it casts nothing, and
  /// opens float8.
  OpenAutocast(std::vector<c10::DeviceType> device_types, c10::ScalarType dtype);
  ~OpenAutocast();
  OpenAutocast(const OpenAutocast&) = delete;
  OpenAutocast& operator=(const OpenAutocast&) = delete;

  /// May be called from any thread, and more than once. The opening thread casts no op that it
  /// begins afterwards.
  void close();

  /// Updates this thread's autocast state to what is still open.
  static void update();

  /// The casts that one OpenAutocast has opened, shared with all threads that join it.
  struct Entry;
  /// The entries of several OpenAutocasts.
  using Entries = std::vector<std::shared_ptr<Entry>>;
  /// The entries that this thread casts by: its own, and those it has joined.
  static Entries open_in_this_thread();

 private:
  friend class JoinAutocast;
  std::shared_ptr<Entry> entry_;
};

/// A scope that casts in this thread as in the thread that opened `opened`: forwards of its models
/// in threads of DataParallel, or of the program, run in it. Does nothing once
/// `opened` is closed, in a thread that has opened one itself, under a shield, and for device types
/// that an autocast scope of the thread has switched off.
class TORCHAMP_API JoinAutocast {
 public:
  /// Saves this thread's state until the end of the scope.
  explicit JoinAutocast(const OpenAutocast& opened);
  /// Joins all entries of a thread.
  explicit JoinAutocast(const OpenAutocast::Entries& opened);
  ~JoinAutocast();
  JoinAutocast(const JoinAutocast&) = delete;
  JoinAutocast& operator=(const JoinAutocast&) = delete;

 private:
  OpenAutocast::Entries joined_;
};

/// The dtype that OpenAutocast currently casts tensors of `device_type` to in this thread; empty if
/// none is open, or if it is switched off.
TORCHAMP_API std::optional<c10::ScalarType> casting_to(c10::DeviceType device_type);

/// Whether this thread is in an autocast scope of the program.
bool is_inside_scope();

/// Whether products are in float8 in this thread, unless that is switched off.
bool is_float8_open();

/// Whether float8 is open in this thread, and not switched off. Checkpoints restore this in a
/// backward, without knowing: it is the setting of autocast's cache, of which they keep the
/// forward's.
TORCHAMP_API bool is_float8_on();

/// A disable_casts around a backward. What is open in this thread is known in the threads that
/// work for the backward.
class TORCHAMP_API ShieldBackward {
 public:
  [[nodiscard]] ShieldBackward();

 private:
  disable_casts shield_;
  std::optional<c10::DebugInfoGuard> info_;
};

}  // namespace torchamp

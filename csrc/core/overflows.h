// The overflows of an optimizer's backwards since its last step, which skip the next one.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <vector>

namespace torchamp {

struct BackwardEnd;

namespace core {

/// These are not a scaler's found_inf, which belongs to one backward and updates the scale: they
/// accumulate over losses and micro-batches. All are on the device.
class TORCHAMP_API Overflows {
 public:
  /// float32 scalar, not 0 if the next step is to be skipped; undefined: it is not.
  const at::Tensor& found_inf() const { return found_inf_; }
  /// Whether it is not 0. Waits for the device.
  bool any() const;
  /// Whether it may be, as far as the host knows without waiting, and without an op.
  bool may_be_any() const;
  /// Whether some may be of grads of other optimizers.
  bool are_shared() const { return are_shared_; }

  /// Adds those of a backward: a float32 scalar.
  void add(const at::Tensor& found_inf, bool is_shared);
  void clear();

  /// A float32 scalar, 1 if a grad of one of those parameters was not finite; undefined: none was.
  at::Tensor of(const std::vector<int64_t>& params) const;
  /// The optimizer steps one more parameter from now on.
  void append_param();
  /// It steps those alone, in that order. What others have found skips nothing, unless it is
  /// shared.
  void keep(const std::vector<int64_t>& params, bool drops_others);

  /// Gives the end of a pass over `count` grads what it writes, and returns the pass's flags.
  at::Tensor lend(BackwardEnd& end, int64_t count, at::Device device);
  /// Takes them back after the pass.
  void take_back(const BackwardEnd& end, const at::Tensor& pass_flags);

 private:
  at::Tensor found_inf_;
  bool are_shared_ = false;
  at::Tensor per_param_;   ///< uint8 [params]: since the last step
  at::Tensor pass_flags_;  ///< for passes over grads; undefined if one has failed
};

}  // namespace core
}  // namespace torchamp

// Float8: the products of one initialize's linears, and forwards in which other threads compute
// them.
#pragma once

#include <torchamp/detail/export.h>

#include <optional>
#include <string>

#include "autocast/open_autocast.h"
#include "float8/weights.h"

namespace torchamp::float8 {

/// Products of known weights are in float8 from now until closed, in the thread that opened it.
class TORCHAMP_API Float8 {
 public:
  /// follows_casts: only where O4 casts. tells: logs where a graph of torch.compile has them in
  /// bfloat16.
  Float8(const Weights::Named& linears, bool follows_casts, bool tells);
  ~Float8();
  Float8(const Float8&) = delete;
  Float8& operator=(const Float8&) = delete;

  /// May be called from any thread, and more than once.
  void close();
  /// The copies of weights and inputs are made again: a step may write weights by `.data`, and a
  /// replay of a graph changes no version.
  void forget_copies() { weights_->forget(); }
  /// Which tensor of the last products was the first that was not finite: "the input of ff.0";
  /// empty if all were. Waits for the device.
  std::string nonfinite() const { return weights_->nonfinite(); }

 private:
  friend class Float8Forward;

  c10::intrusive_ptr<Weights> weights_;
  OpenAutocast opened_;
};

/// A scope around a forward of the models, in any thread. At O5 the casts of other models do not
/// reach into it. Where it trains nothing, the copies end with it.
class TORCHAMP_API Float8Forward {
 public:
  explicit Float8Forward(const Float8& float8);
  ~Float8Forward();
  Float8Forward(const Float8Forward&) = delete;
  Float8Forward& operator=(const Float8Forward&) = delete;

 private:
  c10::intrusive_ptr<Weights> weights_;
  JoinAutocast joined_;
  std::optional<disable_casts> shield_;
};

}  // namespace torchamp::float8

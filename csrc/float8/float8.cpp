#include "float8/float8.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace torchamp::float8 {

Float8::Float8(const Weights::Named& linears, bool follows_casts, bool tells)
    : weights_(c10::make_intrusive<Weights>(linears, follows_casts, tells)),
      opened_({}, at::kFloat8_e4m3fn) {
  weights_->follow();
}

Float8::~Float8() {
  close();
}

void Float8::close() {
  weights_->close();
  opened_.close();
}

Float8Forward::Float8Forward(const Float8& float8)
    : weights_(float8.weights_), joined_(float8.opened_) {
  weights_->follow();
  if (weights_->follows_casts()) return;
  const bool is_off = at::autocast::is_autocast_cache_enabled();
  shield_.emplace();
  at::autocast::set_autocast_cache_enabled(is_off);
}

Float8Forward::~Float8Forward() {
  if (!at::GradMode::is_enabled()) weights_->forget();
}

}  // namespace torchamp::float8

// A fixture for tests that read a thread's autocast state.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/ops/mm.h>
#include <torchamp/autocast.h>

#include "autocast/open_autocast.h"
#include "device.h"
#include "tensors.h"

namespace torchamp {

/// The autocast state of a device type in this thread.
struct State {
  bool enabled, cache_enabled;
  at::ScalarType dtype;
  int nesting;
};

inline State state_of(at::DeviceType type) {
  const int nesting = at::autocast::increment_nesting() - 1;
  at::autocast::decrement_nesting();
  return {at::autocast::is_autocast_enabled(type), at::autocast::is_autocast_cache_enabled(),
          at::autocast::get_autocast_dtype(type), nesting};
}

inline bool operator==(const State& a, const State& b) {
  return a.enabled == b.enabled && a.cache_enabled == b.cache_enabled && a.dtype == b.dtype &&
         a.nesting == b.nesting;
}

class AutocastTest : public DeviceTest {
 protected:
  static at::DeviceType type() { return device().type(); }
  static OpenAutocast open(at::ScalarType dtype = at::kHalf) { return {{type()}, dtype}; }
  /// The dtype of a matrix product of float32 matrices, which shows whether autocast is active.
  static at::ScalarType mm_type() {
    const at::Tensor matrix = Random(50).normal({2, 2}, at::kFloat, device());
    return at::mm(matrix, matrix).scalar_type();
  }

  void TearDown() override { EXPECT_TRUE(state_of(type()) == before_) << "left behind"; }

  const State before_ = state_of(type());
};

}  // namespace torchamp

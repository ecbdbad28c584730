// The device work of an iteration after its backward: torchamp's two passes and none of LibTorch's
// ops, each of which would be a launch.
#include <ATen/record_function.h>
#include <torchamp/optim/adam.h>
#include <torchamp/telemetry.h>

#include <functional>
#include <set>
#include <string>

#include "net.h"

namespace torchamp {
namespace {

thread_local std::set<std::string> called;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& op) {
  called.insert(op.name());
  return nullptr;
}

class DeviceWorkTest : public LevelTest {
 protected:
  explicit DeviceWorkTest(bool materializes = true)
      : net_(make_net(device())),
        adamw_(net_->parameters(), optim::FusedAdamWOptions(0.01)),
        amped_(initialize(
            net_, adamw_,
            Options(level()).loss_scale("dynamic").materialize_master_grads(materializes))) {}

  /// LibTorch's ops in `run`, except those that run no kernel or, like item() on the CPU, only
  /// read.
  static std::set<std::string> ops_of(const std::function<void()>& run) {
    called.clear();
    const auto ops_alone = at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION});
    const auto handle = at::addThreadLocalCallback(ops_alone);
    run();
    at::removeCallback(handle);
    for (const char* name : {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::to",
                             "aten::detach", "detach"})
      called.erase(name);
    const bool may_look = device().is_cpu();
    for (const char* name : {"aten::item", "aten::_local_scalar_dense"}) {
      if (may_look) called.erase(name);
    }
    return called;
  }

  void expect_nothing_of_libtorchs() {
    for (int i = 0; i < 3; ++i) {
      iterate([&] {
        amped_.optimizer.step();
        telemetry(amped_.optimizer);
      });
    }
    EXPECT_EQ(last_ops_, std::set<std::string>());
  }
  void iterate(const std::function<void()>& end) {
    amped_.optimizer.zero_grad();
    scale_loss scaled_loss(loss_of(amped_.model(batch_.data), batch_.target), amped_.optimizer);
    scaled_loss.backward();
    last_ops_ = ops_of([&] {
      scaled_loss.finish();
      end();
    });
  }

  Net net_;
  Batch batch_ = make_batch(device());
  optim::FusedAdamW adamw_;
  Amped<Net> amped_;
  std::set<std::string> last_ops_;
};

class OnePassWorkTest : public DeviceWorkTest {
 protected:
  OnePassWorkTest() : DeviceWorkTest(/*materializes=*/false) {}
};

TEST_P(DeviceWorkTest, NothingOfLibTorchsFollowsTheBackward) {
  expect_nothing_of_libtorchs();
}

TEST_P(OnePassWorkTest, NothingOfLibTorchsFollowsTheBackward) {
  expect_nothing_of_libtorchs();
}

TEST_P(DeviceWorkTest, WhatLibTorchDoesIsSeen) {
  iterate([&] { net_->last->bias.grad().mul_(2); });
  EXPECT_EQ(last_ops_.count("aten::mul_"), 1u);
}

TORCHAMP_AT_LEVELS(DeviceWorkTest, OptLevel::O1, OptLevel::O2, OptLevel::O5);
TORCHAMP_AT_LEVELS(OnePassWorkTest, OptLevel::O2, OptLevel::O5);

}  // namespace
}  // namespace torchamp

// The simulated device finds what it is for, and what a step asks of a CUDA device.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torchamp/detail/graphed.h>
#include <torchamp/logging.h>
#include <torchamp/ops.h>
#include <torchamp/optim/adam.h>
#include <torchamp/telemetry.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../ptx/libcuda.h"
#include "device.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

const at::Device kCard(at::kCUDA, 0);

c10::Stream stream_of_the_pool() {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(kCard);
}

/// The memory as it is, without waiting.
float first_of(const Tensor& tensor) {
  return *static_cast<const float*>(tensor.const_data_ptr());
}

void copy_by_kernel(const Tensor& from, const Tensor& to) {
  ops::copy_cast({from}, {to});
}

class SimulatedCuda : public testing::Test {
 protected:
  Tensor ones_ = at::ones({8}, kCard), twos_ = at::full({8}, 2.0f, kCard);
};

TEST_F(SimulatedCuda, AKernelRunsWhenTheHostWaits) {
  copy_by_kernel(twos_, ones_);
  EXPECT_EQ(first_of(ones_), 1);
  EXPECT_EQ(ones_[0].item<float>(), 2);
}

TEST_F(SimulatedCuda, AnotherStreamSeesAKernelsStoresAfterAnEvent) {
  const c10::Stream other = stream_of_the_pool();
  copy_by_kernel(twos_, ones_);
  {
    const c10::StreamGuard guard(other);
    EXPECT_EQ(ones_[0].item<float>(), 1);
  }
  c10::Event event(at::kCUDA);
  event.record(simulated::current_stream(0));
  event.block(other);
  const c10::StreamGuard guard(other);
  EXPECT_EQ(ones_[0].item<float>(), 2);
}

TEST_F(SimulatedCuda, AnEventIsReachedAsItsStreamGetsOn) {
  copy_by_kernel(twos_, ones_);
  c10::Event event(at::kCUDA);
  event.record(simulated::current_stream(0));
  EXPECT_FALSE(event.query());
  EXPECT_TRUE(event.query());
  EXPECT_EQ(first_of(ones_), 2);
}

TEST_F(SimulatedCuda, Float8OfAListIsALaunchAnOp) {
  const auto dtype = at::kFloat8_e4m3fn;
  const std::vector<Tensor> matrices(100, ones_.view({2, 4}));
  const simulated::Counts before = simulated::counts();
  const Tensor scales = ops::float8_scales(matrices, dtype);
  EXPECT_EQ(simulated::counts().launches, before.launches + 1);
  const auto [plain, transposed] = ops::float8_cast(matrices, scales, dtype);
  EXPECT_EQ(simulated::counts().launches, before.launches + 2);
  EXPECT_EQ(simulated::counts().waits, before.waits);
  EXPECT_EQ(transposed[99].cpu().to(at::kFloat).sum().item<float>(), 8 * 256.0f);
}

/// A fault ends the device's life, so each has a process of its own.
class SimulatedFault : public SimulatedCuda {
 protected:
  SimulatedFault() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }

  static void synchronize() { c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0); }
  /// Ends the process at a fault, which the driver has printed.
  static void expect_a_fault() {
    EXPECT_THROW(synchronize(), c10::Error);
    std::_Exit(1);
  }
};

void give_away_in_use(bool is_recorded) {
  const Tensor from = at::ones({8}, kCard);
  Tensor to = at::zeros({8}, kCard);
  const c10::Stream other = stream_of_the_pool();
  {
    const c10::StreamGuard guard(other);
    copy_by_kernel(from, to);
  }
  if (is_recorded) to.record_stream(other);
  to = Tensor();
}

TEST_F(SimulatedFault, MemoryThatAnotherStreamUsesMayNotBeFreed) {
  give_away_in_use(/*is_recorded=*/true);
  synchronize();
  EXPECT_DEATH(
      {
        give_away_in_use(/*is_recorded=*/false);
        expect_a_fault();
      },
      "an access of 16 bytes outside allocated memory");
}

TEST_F(SimulatedFault, AKernelMayNotReachBeyondATensor) {
  EXPECT_DEATH(
      {
        ones_.unsafeGetTensorImpl()->set_sizes_contiguous({9});
        ops::check({ones_}, at::zeros({}, kCard));
        expect_a_fault();
      },
      "an access of 4 bytes outside allocated memory");
}

/// The first step in a graph makes the optimizer's states on another stream than those that use
/// them.
TEST_F(SimulatedCuda, StatesThatAReplayUsesAreNotGivenAway) {
  const Tensor param = at::ones({8}, at::TensorOptions(kCard).requires_grad(true));
  param.mutable_grad() = at::ones({8}, kCard);
  auto adam =
      std::make_unique<optim::FusedAdam>(std::vector<Tensor>{param}, optim::FusedAdamOptions(0.25));
  const c10::Stream capturing = stream_of_the_pool();
  ASSERT_EQ(ptxBeginCapture(simulated::handle_of(capturing)), 0);
  {
    const c10::StreamGuard guard(capturing);
    adam->step();
  }
  ASSERT_EQ(ptxEndCapture(simulated::handle_of(capturing)), 0);
  EXPECT_EQ(ptxReplay(0, nullptr), 0);
  adam.reset();
  EXPECT_EQ(param.detach()[0].item<float>(), 0.75f);
}

/// What the device tells of a step is read when it is there, and nothing waits for it.
TEST_F(SimulatedCuda, AnOverflowIsToldOnceTheDeviceHasFoundIt) {
  std::vector<std::string> heard;
  const LogSink before =
      set_log_sink([&](LogLevel, const std::string& text) { heard.push_back(text); });
  const Net net = make_net(kCard);
  Batch batch = make_batch(kCard);
  optim::FusedAdamW adamw(net->parameters(), optim::FusedAdamWOptions(0.01));
  auto [model, optimizer] = initialize(net, adamw, Options(OptLevel::O2));
  heard.clear();
  for (const double factor : {1.0, std::numeric_limits<double>::infinity(), 1.0}) {
    scale_loss scaled_loss(loss_of(model(batch.data), batch.target) * factor, optimizer);
    scaled_loss.backward();
    scaled_loss.finish();
    optimizer.step();
    if (factor != 1) {
      EXPECT_EQ(heard, std::vector<std::string>{});
    }
    optimizer.zero_grad();
  }
  set_log_sink(before);
  EXPECT_EQ(heard,
            std::vector<std::string>{"loss 0 is not finite: step skipped, loss scale now 32768"});
}

/// A graph of what follows a backward: torch's ops run in no capture here.
class EndOfIteration : public detail::DeviceGraph {
 public:
  explicit EndOfIteration(bool& is_captured) : is_captured_(is_captured) {}
  void begin_capture() override { simulated::keep_memory(is_captured_ = true); }
  void end_capture() override { simulated::keep_memory(is_captured_ = false); }
  void replay() override { ASSERT_EQ(ptxReplay(0, nullptr), 0); }

 private:
  bool& is_captured_;
};

/// Replays unscale the same grads, of a loss that is finite or not, and step.
class GraphedOnTheDevice : public testing::Test {
 protected:
  GraphedOnTheDevice() {
    before_ = set_log_sink([this](LogLevel, const std::string& text) { heard_.push_back(text); });
    heard_.clear();
  }
  ~GraphedOnTheDevice() override { set_log_sink(before_); }

  void call() { iteration_(batch_.data, batch_.target); }
  Telemetry known() {
    simulated::synchronize(simulated::current_stream(0));
    return telemetry(amped_.optimizer);
  }

  void iterate(const Tensor& data, const Tensor& target) {
    amped_.optimizer.zero_grad();
    scale_loss scaled_loss(loss_of(amped_.model(data), target) * factor_, amped_.optimizer);
    scaled_loss.backward();
    void* const stream = simulated::handle_of(simulated::current_stream(0));
    if (is_captured_) {
      ASSERT_EQ(ptxBeginCapture(stream), 0);
    }
    const std::uint64_t before = simulated::counts().launches;
    scaled_loss.finish();
    amped_.optimizer.step();
    if (is_captured_) {
      ASSERT_EQ(ptxEndCapture(stream), 0);
    }
    launches_ = simulated::counts().launches - before;
  }

  Net net_ = make_net(kCard);
  Batch batch_ = make_batch(kCard);
  optim::FusedAdamW adamw_{net_->parameters(), optim::FusedAdamWOptions(0.01)};
  Amped<Net> amped_ = initialize(net_, adamw_, Options(OptLevel::O2).verbosity(1));
  double factor_ = 1;
  bool is_captured_ = false;
  std::uint64_t launches_ = 0;
  std::vector<std::string> heard_;
  LogSink before_;
  std::function<void(const Tensor&, const Tensor&)> function_ =
      [this](const Tensor& data, const Tensor& target) { iterate(data, target); };
  detail::Graphed<std::function<void(const Tensor&, const Tensor&)>> iteration_{
      function_, {at::kCUDA, [this] { return std::make_unique<EndOfIteration>(is_captured_); }}, 8};
};

TEST_F(GraphedOnTheDevice, EachReplayIsCounted) {
  for (int i = 1; i <= 9; ++i) {
    call();
    EXPECT_EQ(known().steps, i);
    EXPECT_EQ(known().skipped_steps, 0);
    EXPECT_EQ(known().loss_scales, std::vector<double>{65536});
  }
}

TEST_F(GraphedOnTheDevice, EachSkippedReplayIsTold) {
  for (int i = 0; i < 3; ++i) call();
  factor_ = std::numeric_limits<double>::infinity();
  for (int i = 1; i <= 3; ++i) {
    call();
    EXPECT_EQ(known().skipped_steps, i);
    EXPECT_EQ(known().loss_scales, std::vector<double>{65536.0 / (1 << i)});
    EXPECT_FALSE(*known().stepped);
  }
  EXPECT_EQ(heard_,
            (std::vector<std::string>{"loss 0 is not finite: step skipped, loss scale now 32768",
                                      "loss 0 is not finite: step skipped, loss scale now 16384",
                                      "loss 0 is not finite: step skipped, loss scale now 8192"}));
}

TEST_F(GraphedOnTheDevice, AReplayIsTwoLaunchesAndNoWait) {
  for (int i = 0; i < 4; ++i) call();
  EXPECT_EQ(launches_, 2u);
  const std::uint64_t before = simulated::counts().waits;
  call();
  EXPECT_EQ(simulated::counts().waits, before);
}

TEST_F(GraphedOnTheDevice, EachReplayReadsTheLearningRate) {
  for (int i = 0; i < 5; ++i) call();
  adamw_.param_groups()[0].options().set_lr(0);
  const Tensor before = net_->first->weight.detach().cpu();
  call();
  EXPECT_TRUE(net_->first->weight.detach().cpu().equal(before));
  adamw_.param_groups()[0].options().set_lr(0.5);
  call();
  EXPECT_FALSE(net_->first->weight.detach().cpu().equal(before));
}

/// Of the end of a backward and the step.
class CostTest : public testing::TestWithParam<int> {};

TEST_P(CostTest, OfAStepIsTwoLaunches) {
  const Net net = make_net(kCard);
  const Batch batch = make_batch(kCard);
  optim::FusedAdamW adamw(net->parameters(), optim::FusedAdamWOptions(0.01));
  auto [model, optimizer] = initialize(net, adamw, Options(OptLevel::O2).verbosity(GetParam()));
  for (int i = 0; i < 4; ++i) {
    optimizer.zero_grad();
    scale_loss scaled_loss(loss_of(model(batch.data), batch.target), optimizer);
    scaled_loss.backward();
    const simulated::Counts before = simulated::counts();
    scaled_loss.finish();
    optimizer.step();
    const simulated::Counts after = simulated::counts();
    if (i == 0) continue;  // makes the states
    EXPECT_EQ(after.launches - before.launches, 2u);
    EXPECT_EQ(after.ops - before.ops, 0u);
    EXPECT_EQ(after.waits - before.waits, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(AtVerbosity, CostTest, testing::Values(0, 1, 2),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace torchamp

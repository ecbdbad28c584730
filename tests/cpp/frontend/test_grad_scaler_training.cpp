// Training loops with GradScaler, against the same loops without a scale that omit the overflowed
// steps; and the names of <torchamp/torch_amp.h>.

#include <ATen/autocast_mode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torchamp/torch_amp.h>

#include "fused_cases.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

constexpr int kSteps = 5, kOverflowed = 2;

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

class GradScalerTrainingTest : public FusedCaseTest {
 protected:
  struct Run {
    explicit Run(const Make& make)
        : net(make_net(device())), optimizer(make(Groups{{net->parameters()}})) {}
    Net net;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };

  static void backward(Run& run, GradScaler& scaler, int step, bool overflow) {
    const Batch batch = make_batch(device(), static_cast<unsigned>(step));
    run.optimizer->zero_grad();
    scaler.scale(loss_of(run.net(batch.data), batch.target)).backward();
    if (overflow) run.net->last->bias.grad()[1].fill_(INFINITY);
  }

  static std::vector<Tensor> trained(const Make& make, GradScaler scaler, bool clips) {
    Run run(make);
    for (int step = 0; step < kSteps; ++step) {
      const bool overflow = step == kOverflowed;
      if (overflow && !scaler.is_enabled()) continue;
      backward(run, scaler, step, overflow);
      if (clips) {
        scaler.unscale_(*run.optimizer);
        torch::nn::utils::clip_grad_norm_(run.net->parameters(), 0.01);
      }
      const bool expected = !overflow || result_of_skipped(*run.optimizer, device());
      EXPECT_EQ(scaler.step(*run.optimizer), expected);
      scaler.update();
    }
    return clones(run.net->parameters());
  }

  static GradScaler enabled() { return GradScaler(GradScalerOptions(1024).growth_interval(2)); }
  static GradScaler disabled() { return GradScaler(GradScalerOptions().enabled(false)); }
};

TEST_P(GradScalerTrainingTest, OursAndLibTorchsTrainAsWithoutAScale) {
  for (const Make& make : {Make(each().ours), Make(each().theirs)}) {
    for (const bool clips : {false, true}) {
      if (!make) continue;
      EXPECT_LE(distance(trained(make, enabled(), clips), trained(make, disabled(), clips)), 1e-6);
    }
  }
}

TORCHAMP_ON_FUSED_CASES(GradScalerTrainingTest, fused_cases());

class TorchNamesTest : public DeviceTest {};

TEST_P(TorchNamesTest, TrainAsProgramsSpellThem) {
  Net net = make_net(device());
  torch::optim::Adam adam(net->parameters(), 0.02);
  torch::amp::GradScaler scaler(GradScalerOptions().device(device()));
  const Batch batch = make_batch(device());
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    adam.zero_grad();
    Tensor loss;
    {
      torch::autocast guard(device().type(), torch::kHalf);
      const Tensor output = net(batch.data);
      EXPECT_EQ(output.scalar_type(), torch::kHalf);
      loss = loss_of(output.to(torch::kFloat), batch.target);
    }
    scaler.scale(loss).backward();
    scaler.step(adam);
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST_P(TorchNamesTest, AreTorchampsClasses) {
  EXPECT_TRUE((std::is_base_of_v<torch::amp::GradScaler, torch::cuda::amp::GradScaler>));
  EXPECT_TRUE((std::is_base_of_v<GradScaler, torch::amp::GradScaler>));
  EXPECT_TRUE((std::is_base_of_v<torch::autocast, torch::amp::autocast>));
  const auto is_on = [] { return at::autocast::is_autocast_enabled(at::kCUDA); };
  {
    const torch::cuda::amp::autocast guard(true, at::kBFloat16);
    EXPECT_TRUE(is_on());
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kBFloat16);
    const torch::cuda::amp::autocast inner(false);
    EXPECT_FALSE(is_on());
  }
  EXPECT_FALSE(is_on());
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kHalf);
}

TORCHAMP_ON_EACH_DEVICE(TorchNamesTest);

}  // namespace
}  // namespace torchamp

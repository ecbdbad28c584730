#include <ATen/record_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torchamp/initialize.h>
#include <torchamp/overflow_trace.h>
#include <torchamp/scale_loss.h>

#include <memory>
#include <sstream>

#include "device.h"
#include "errors.h"

namespace torchamp {
namespace {

using at::Tensor;

class OverflowTraceTest : public DeviceTest {
 protected:
  static Tensor ones(at::ScalarType dtype = at::kHalf) {
    return at::ones({2, 3}, at::TensorOptions(device()).dtype(dtype));
  }
};

TEST_P(OverflowTraceTest, NamesTheOpAndTheScope) {
  const OverflowTrace trace;
  Tensor x = ones() * 40000;
  EXPECT_FALSE(trace.origin());
  {
    RECORD_USER_SCOPE("head");
    x = x + x;
  }
  x = x * 2;
  ASSERT_TRUE(trace.origin());
  EXPECT_EQ(trace.origin()->op, "add");
  EXPECT_EQ(trace.origin()->scope, "head");
  EXPECT_FALSE(trace.origin()->is_backward || trace.origin()->is_nan);
  EXPECT_EQ(trace.origin()->dtype, at::kHalf);
  EXPECT_EQ(trace.origin()->magnitude, 40000);
  std::ostringstream text;
  text << *trace.origin();
  EXPECT_EQ(text.str(), "add of \"head\" in the forward makes inf in Half of inputs up to 40000");
}

TEST_P(OverflowTraceTest, FindsWhatABackwardBeginsWith) {
  const OverflowTrace trace;
  Tensor x = ones().requires_grad_(), y;
  {
    RECORD_USER_SCOPE("steep");
    y = x * 1000.0;
  }
  (y.to(at::kFloat).sum() * 1000.0).backward();
  ASSERT_TRUE(trace.origin());
  EXPECT_TRUE(trace.origin()->is_backward);
  EXPECT_EQ(trace.origin()->op, "mul");
  EXPECT_EQ(trace.origin()->scope, "steep");
  EXPECT_FALSE(x.grad().isfinite().any().item<bool>());
}

TEST_P(OverflowTraceTest, NaNOfFiniteNumbers) {
  const OverflowTrace trace;
  (-ones(at::kFloat)).log();
  EXPECT_EQ(trace.origin()->op, "log");
  EXPECT_TRUE(trace.origin()->is_nan);
}

TEST_P(OverflowTraceTest, InfinityThatIsMeant) {
  const OverflowTrace trace;
  const Tensor mask = at::eye(2, 3, ones().options().dtype(at::kBool));
  ones(at::kFloat).masked_fill(mask, -INFINITY).softmax(-1);
  at::full({2}, INFINITY, device());
  EXPECT_FALSE(trace.origin());
}

TEST_P(OverflowTraceTest, FindsTheNextOneAfterAReset) {
  OverflowTrace trace;
  ones().mul(40000).mul(2);
  EXPECT_EQ(trace.origin()->op, "mul");
  trace.reset();
  EXPECT_FALSE(trace.origin());
  ones().add(1.0);
  EXPECT_FALSE(trace.origin());
  ones(at::kFloat).div(0.0);
  EXPECT_EQ(trace.origin()->op, "div");
}

TEST_P(OverflowTraceTest, SeesNothingOnceItIsGone) {
  { const OverflowTrace trace; }
  ones().mul(1e30);
  const OverflowTrace trace;
  EXPECT_FALSE(trace.origin());
  const std::string error = message_of([] { OverflowTrace second; });
  EXPECT_EQ(error,
            "OverflowTrace: expected one OverflowTrace or preflight at a time, got a second");
}

TEST_P(OverflowTraceTest, ForgetsTheScopesOfAnotherTrace) {
  {
    auto first = std::make_unique<OverflowTrace>();
    RECORD_USER_SCOPE("old");
    first.reset();
  }
  const OverflowTrace trace;
  ones().mul(40000).mul(2);
  EXPECT_EQ(trace.origin()->scope, "");
}

TEST_P(OverflowTraceTest, ATrainingStep) {
  torch::nn::Linear net(3, 2);
  net->to(device());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto amped = initialize(net, sgd, Options("O2").verbosity(0));
  OverflowTrace trace;
  for (const double factor : {1.0, 1e30}) {
    amped.optimizer.zero_grad();
    const Tensor loss = amped.model(ones(at::kFloat)).mean() * factor;
    scale_loss(loss, amped.optimizer).backward();
    EXPECT_EQ(trace.origin().has_value(), factor > 1);
    EXPECT_EQ(amped.optimizer.step(), factor == 1.0);
  }
  EXPECT_TRUE(trace.origin()->is_backward);
}

TORCHAMP_ON_EACH_DEVICE(OverflowTraceTest);

}  // namespace
}  // namespace torchamp

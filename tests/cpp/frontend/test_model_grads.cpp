// What programs do to the grads of net->parameters() between a backward and its step, against the
// same in plain float32.
#include <torch/nn/utils/clip_grad.h>
#include <torchamp/clip.h>
#include <torchamp/optim/sgd.h>

#include <cmath>
#include <functional>
#include <string>

#include "errors.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

torch::nn::Linear layer_of_halves() {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear layer(4, 2);
  for (const Tensor& param : layer->parameters()) Tensor(param).fill_(0.5);
  return layer;
}

/// A layer in training, whose values and grads are exact in every dtype.
template <class O>
struct OneLayer {
  explicit OneLayer(const Options& options)
      : net(layer_of_halves()),
        optimizer(net->parameters(), 0.25),
        amped(initialize(net, optimizer, options)) {}

  void backward(double factor = 1) {
    Tensor loss = at::zeros({});
    for (const Tensor& param : net->parameters()) {
      loss = loss + (param.to(at::kFloat).cumsum(0) * factor).sum();
    }
    scale_loss(loss, amped.optimizer).backward();
  }
  bool step() { return amped.optimizer.step(); }
  std::vector<Tensor> values() {
    std::vector<Tensor> all;
    for (const Tensor& param : net->parameters()) {
      all.push_back(amped.model.amp()->value(param).detach().clone());
    }
    return all;
  }

  torch::nn::Linear net;
  O optimizer;
  Amped<torch::nn::Linear> amped;
};

struct GradEdit {
  std::string name;
  std::function<void(torch::nn::Linear&)> of;
};

/// Of each grad of the net.
GradEdit of_each(std::string name, const std::function<void(const Tensor&)>& of_param) {
  return {std::move(name), [=](torch::nn::Linear& net) {
            const torch::NoGradGuard no_grad;
            for (const Tensor& param : net->parameters()) of_param(param);
          }};
}

/// Those that make None.
const std::vector<GradEdit>& drops() {
  static const std::vector<GradEdit> all = {
      {"the net's zero_grad", [](torch::nn::Linear& net) { net->zero_grad(); }},
      of_each("none", [](const Tensor& p) { p.mutable_grad().reset(); }),
  };
  return all;
}

/// Those that PyTorch counts, or that show by another tensor.
const std::vector<GradEdit>& counted_writes() {
  static const std::vector<GradEdit> all = {
      {"the net's zero_grad to zeros", [](torch::nn::Linear& net) { net->zero_grad(false); }},
      of_each("zeros", [](const Tensor& p) { p.grad().zero_(); }),
      of_each("a product", [](const Tensor& p) { p.grad().mul_(0.5); }),
      of_each("assigned", [](const Tensor& p) { p.mutable_grad() = p.grad() * 0.5; }),
      of_each("assigned in 16 bits",
              [](const Tensor& p) { p.mutable_grad() = (p.grad() * 0.5).to(p.scalar_type()); }),
      of_each("assigned over none",
              [](const Tensor& p) {
                const Tensor before = p.grad();
                p.mutable_grad().reset();
                p.mutable_grad() = before.sign();
              }),
  };
  return all;
}

std::vector<GradEdit> edits() {
  std::vector<GradEdit> all = {
      {"clip_grad_norm_",
       [](torch::nn::Linear& net) { torch::nn::utils::clip_grad_norm_(net->parameters(), 0.75); }},
      {"clip_grad_value_",
       [](torch::nn::Linear& net) { torch::nn::utils::clip_grad_value_(net->parameters(), 0.75); }},
      of_each("the clamp of DQN", [](const Tensor& p) { p.grad().data().clamp_(-0.75, 0.75); }),
      of_each("zeros by data", [](const Tensor& p) { p.grad().data().zero_(); }),
  };
  for (const auto& more : {drops(), counted_writes()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

class ModelGradsTest : public ::testing::TestWithParam<OptLevel> {
 protected:
  /// Of an edit after each of two backwards, and one more backward: the net trains as in float32,
  /// and its grads are those of float32 all the time.
  template <class O>
  static void expect_as_in_float32(const Options& options) {
    for (const GradEdit& edit : edits()) {
      SCOPED_TRACE(edit.name);
      OneLayer<O> run(options), plain(Options(options).enabled(false));
      for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < 2; ++i) {
          run.backward();
          plain.backward();
          edit.of(run.net);
          edit.of(plain.net);
          expect_same_grads(run.net, plain.net);
        }
        run.backward(2);
        plain.backward(2);
        EXPECT_TRUE(run.step() && plain.step());
        EXPECT_TRUE(same_bits(run.values(), plain.values()));
        run.amped.optimizer.zero_grad();
        plain.amped.optimizer.zero_grad();
      }
    }
  }
  static void expect_same_grads(const torch::nn::Linear& net, const torch::nn::Linear& plain) {
    for (size_t i = 0; i < 2; ++i) {
      const Tensor grad = net->parameters()[i].grad(), expected = plain->parameters()[i].grad();
      ASSERT_EQ(grad.defined(), expected.defined());
      EXPECT_TRUE(!grad.defined() || same_bits(grad.to(at::kFloat), expected));
    }
  }
};

TEST_P(ModelGradsTest, AreWhatTheStepUses) {
  const Options options = quiet(GetParam()).loss_scale(1024.0);
  expect_as_in_float32<torch::optim::SGD>(options);
  expect_as_in_float32<optim::FusedSGD>(options);
}

TEST_P(ModelGradsTest, ShowAnOverflowThatNothingButAZeroingClears) {
  for (const GradEdit& edit : edits()) {
    SCOPED_TRACE(edit.name);
    OneLayer<torch::optim::SGD> run(quiet(GetParam()).loss_scale("dynamic"));
    const auto before = run.values();
    run.backward(INFINITY);
    EXPECT_TRUE(run.net->weight.grad().isinf().all().item<bool>());
    edit.of(run.net);
    const bool is_drop = !run.net->weight.grad().defined();
    EXPECT_EQ(run.step(), is_drop);
    EXPECT_TRUE(same_bits(run.values(), before));
    run.amped.optimizer.zero_grad();
    run.backward(0.25);
    EXPECT_TRUE(run.step());
    EXPECT_FALSE(same_bits(run.values(), before));
  }
}

INSTANTIATE_TEST_SUITE_P(At, ModelGradsTest,
                         ::testing::Values(OptLevel::O1, OptLevel::O2, OptLevel::O5),
                         [](const auto& info) { return std::string(name(info.param)); });

using FusedLayer = OneLayer<optim::FusedSGD>;

Options lazily() {
  return quiet(OptLevel::O2).loss_scale(1024.0).materialize_master_grads(false);
}

TEST(ScaledModelGradsTest, MustNotBeWritten) {
  FusedLayer run(lazily());
  const auto before = run.values();
  for (const GradEdit& edit : counted_writes()) {
    SCOPED_TRACE(edit.name);
    run.backward();
    edit.of(run.net);
    const std::string expected =
        "expected the grad of a model's parameter, of sizes [2, 4], to be unmodified since "
        "scale_loss, which with materialize_master_grads=False leaves it scaled, got a modified "
        "one; clip with amp.clip_grad_norm_, or modify the grads of amp.master_params";
    EXPECT_EQ(message_of([&] { run.step(); }), expected);
    EXPECT_EQ(message_of([&] { run.backward(); }), expected);
    EXPECT_TRUE(same_bits(run.values(), before));
    run.amped.optimizer.zero_grad();
  }
}

TEST(ScaledModelGradsTest, MustNotBeWrittenBeforeAnyClipping) {
  FusedLayer run(lazily());
  for (int step = 0; step < 2; ++step) {  // the second backward computes the norm in its pass
    run.backward();
    const Tensor grad = run.net->weight.grad();
    EXPECT_NO_THROW(clip_grad_norm_(run.amped.optimizer, 1.0));
    grad.mul_(0.5);
    EXPECT_EQ(message_of([&] { clip_grad_norm_(run.amped.optimizer, 1.0); }),
              "expected the grad of a model's parameter, of sizes [2, 4], to be unmodified since "
              "scale_loss, which with materialize_master_grads=False leaves it scaled, got a "
              "modified one; clip with amp.clip_grad_norm_, or modify the grads of "
              "amp.master_params");
    run.amped.optimizer.zero_grad();
  }
}

}  // namespace
}  // namespace torchamp

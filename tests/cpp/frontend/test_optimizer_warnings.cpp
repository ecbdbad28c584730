// Mistakes that may be meant: one message each.
#include <torch/csrc/autograd/autograd.h>
#include <torchamp/autocast.h>
#include <torchamp/float32_params.h>
#include <torchamp/optim/sgd.h>

#include <functional>
#include <optional>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class WarningsTest : public LevelTest {
 protected:
  static std::string logged(const std::function<void()>& call) {
    const Logged logged;
    call();
    return logged.text();
  }
};

TEST_P(WarningsTest, OfStochasticRoundingBesideMasters) {
  Net net = make_net(device());
  torch::optim::SGD plain(net->first->parameters(), 0.1);
  optim::FusedSGD sgd(net->last->parameters(), optim::FusedSGDOptions(0.1),
                      optim::StorageOptions().stochastic_rounding(true));
  const std::string text =
      "initialize: expected optimizers[1] without stochastic_rounding, which is of bfloat16 "
      "parameters that have no masters, got one with it, which changes nothing; set "
      "master_weights to false, or leave it out\n";
  EXPECT_EQ(logged([&] {
              (void)initialize(net, {plain, sgd}, level());
            }),
            level() == OptLevel::O2 ? text : "");
}

TEST_P(WarningsTest, OfAnAutocastScopeAroundACastModel) {
  const auto warned = [&](bool enabled) {
    Training training(device(), Options(level()));
    const Training beside(device(), quiet(OptLevel::O1));  // its casts are no scope of the program
    return logged([&] {
      (void)training.loss();
      const autocast casts(device(), AutocastOptions(at::kBFloat16).enabled(enabled));
      for (int i = 0; i < 2; ++i) (void)training.loss();
    });
  };
  const std::string text =
      "forward: expected no autocast around a model that initialize has cast to Half, got a scope "
      "that casts to BFloat16, which casts its ops again; leave the scope out\n";
  EXPECT_EQ(warned(true), level() == OptLevel::O2 ? text : "");
  EXPECT_EQ(warned(false), "");
}

TEST_P(WarningsTest, OfAFirstStepByGradsThatNoScaleLossHasScaled) {
  const std::string text =
      "Optimizer::step: expected a backward in scale_loss before the first step, since the loss "
      "scale is dynamic, got grads of one outside of it, in which small numbers are lost to 16 "
      "bits; run it in scale_loss. If the program scales losses itself, give initialize a "
      "loss_scale of 1\n";
  const auto warned = [&](const Options& options, bool is_scaled) {
    Training training(device(), options);
    return logged([&] {
      for (int i = 0; i < 2; ++i) {
        if (is_scaled && i == 0) scale_loss(training.loss(), training.optimizer()).backward();
        if (!is_scaled || i > 0) training.loss().backward();
        training.optimizer().step();
        training.optimizer().zero_grad();
      }
    });
  };
  EXPECT_EQ(warned(Options(level()), false), text);
  EXPECT_EQ(warned(Options(level()).loss_scale(1), false), "");
  EXPECT_EQ(warned(Options(level()), true).find(text), std::string::npos);
}

TEST_P(WarningsTest, OfGradsThatLoseTheirGraph) {
  const std::string text =
      "scale_loss: expected a backward without create_graph, got one with it, whose graph the "
      "grads lose as they are unscaled; differentiate what torch.autograd.grad(loss, params, "
      "create_graph=True) gives of the loss itself, or train at O0 or O4, which keep the graph\n";
  Training training(device(), Options(level()).loss_scale(64));
  const auto backward = [&](bool create_graph) {
    scale_loss(training.loss(), training.optimizer())
        .backward({}, /*retain_graph=*/true, create_graph);
  };
  EXPECT_EQ(logged([&] { backward(false); }), "");
  EXPECT_NE(logged([&] { backward(true); }).find(text), std::string::npos);
  EXPECT_EQ(logged([&] { backward(true); }).find(text), std::string::npos);
  training.optimizer().zero_grad();
}

TEST_P(WarningsTest, OfGradsThatComeAfterTheScopeOfTheirLoss) {
  const std::string text =
      "Optimizer::step: expected grads of a backward in scale_loss, got grads that came after a "
      "scale_loss without one, and are not unscaled; assign those of the scaled loss in its scope, "
      "or assign those that torch.autograd.grad gives of the loss itself\n";
  const auto warned = [&](double loss_scale, bool inside) {
    Training training(device(), Options(level()).loss_scale(loss_scale));
    const std::vector<Tensor> params = training.net->parameters();
    const auto assign = [&](const std::vector<Tensor>& grads) {
      for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = grads[i];
    };
    return logged([&] {
      std::vector<Tensor> grads;
      {
        const scale_loss scaled_loss(training.loss(), training.optimizer());
        grads = torch::autograd::grad({scaled_loss}, params);
        if (inside) assign(grads);
      }
      if (!inside) assign(grads);
      training.optimizer().step();
    });
  };
  EXPECT_EQ(warned(64, /*inside=*/false), text);
  EXPECT_EQ(warned(64, /*inside=*/true), "");
  EXPECT_EQ(warned(1, /*inside=*/false), "");
}

TEST_P(WarningsTest, OfAFirstStepThatUndoesADataWrite) {
  const std::string text =
      "Optimizer::step: expected parameters to hold what initialize has left in them, or what was "
      "written in a way that PyTorch counts, got one of sizes [";
  const auto warned = [&](const Options& options, bool is_lent) {
    Training training(device(), options);
    return logged([&] {
      for (int i = 0; i < 2; ++i) {
        {
          std::optional<Float32Params> lent;
          if (is_lent) lent.emplace(training.amped.model);
          training.net->parameters().front().variable_data().fill_(0.25);
        }
        scale_loss(training.loss(), training.optimizer()).backward();
        training.optimizer().step();
        training.optimizer().zero_grad();
      }
    });
  };
  const bool has_masters = level() == OptLevel::O2;
  EXPECT_EQ(warned(Options(level()), false).find(text), has_masters ? 0 : std::string::npos);
  EXPECT_EQ(warned(Options(level()), true), "");
  EXPECT_EQ(warned(Options(level()).adopt_data_writes(true), false), "");
}

TORCHAMP_AT_LEVELS(WarningsTest, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp

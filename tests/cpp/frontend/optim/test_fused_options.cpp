#include <torchamp/optim/adam.h>
#include <torchamp/optim/lamb.h>
#include <torchamp/optim/novograd.h>
#include <torchamp/optim/sgd.h>

#include "errors.h"
#include "fused_cases.h"
#include "optim/fused_stepper.h"

namespace torchamp::optim {
namespace {

using at::Tensor;
using torch::optim::OptimizerParamGroup;
using Row = FusedStepper::Row;

const Tensor& param() {
  static const Tensor tensor = scalar_of(1.0).set_requires_grad(true);
  return tensor;
}

/// Every option differs from its default, to detect a lost option or a wrong column.
TEST(FusedOptionsTest, RowsHoldEveryOptionInItsColumn) {
  EXPECT_EQ(FusedAdamOptions(0.1)
                .betas({0.2, 0.3})
                .eps(0.4)
                .weight_decay(0.5)
                .decoupled_weight_decay(true)
                .maximize(true)
                .bias_correction(false)
                .hyper(),
            (Row{0.1, 0.2, 0.3, 0.4, 0.5, 1, 1, 0}));
  EXPECT_EQ(FusedSGDOptions(0.1)
                .momentum(0.2)
                .dampening(0.3)
                .weight_decay(0.4)
                .nesterov(true)
                .maximize(true)
                .decay_after_momentum(true)
                .hyper(),
            (Row{0.1, 0.2, 0.3, 0.4, 1, 1, 1}));
  EXPECT_EQ(FusedNovoGradOptions(0.1)
                .betas({0.2, 0.3})
                .eps(0.4)
                .weight_decay(0.5)
                .maximize(true)
                .bias_correction(false)
                .decay_in_moment(true)
                .averages_grads(false)
                .starts_at_zero(true)
                .hyper(),
            (Row{0.1, 0.2, 0.3, 0.4, 0.5, 1, 0, 1, 0, 1}));
  EXPECT_EQ(FusedLAMBOptions(0.1)
                .betas({0.2, 0.3})
                .eps(0.4)
                .weight_decay(0.5)
                .decoupled_weight_decay(false)
                .maximize(true)
                .bias_correction(false)
                .averages_grads(false)
                .always_adapts(true)
                .max_grad_norm(0.6)
                .hyper(),
            (Row{0.1, 0.2, 0.3, 0.4, 0.5, 0, 1, 0, 0, 1, 0.6}));
}

TEST(FusedOptionsTest, DefaultsAreThoseOfPython) {
  EXPECT_EQ(FusedAdamOptions().hyper(), (Row{1e-3, 0.9, 0.999, 1e-8, 0, 0, 0, 1}));
  EXPECT_EQ(FusedAdamWOptions().hyper(), (Row{1e-3, 0.9, 0.999, 1e-8, 1e-2, 1, 0, 1}));
  EXPECT_EQ(FusedSGDOptions().hyper(), (Row{1e-3}));
  EXPECT_EQ(FusedNovoGradOptions().hyper(), (Row{1e-3, 0.9, 0.999, 1e-8, 0, 0, 1, 0, 1, 0}));
  EXPECT_EQ(FusedLAMBOptions().hyper(), (Row{1e-3, 0.9, 0.999, 1e-6, 0.01, 1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(FusedLAMBOptions().max_grad_norm(std::nullopt).hyper()[10], 0.0);
}

TEST(FusedOptionsTest, TheAlgorithmFollowsFromTheOptions) {
  EXPECT_EQ(FusedSGDOptions(0.1).algorithm(), StepAlgorithm::kSgd);
  EXPECT_EQ(FusedSGDOptions(0.1).momentum(0.1).algorithm(), StepAlgorithm::kMomentum);
}

TEST(FusedOptionsTest, AreEqualWhereEveryOptionIs) {
  EXPECT_TRUE(FusedAdamOptions(0.1).eps(0.2) == FusedAdamOptions(0.1).eps(0.2));
  EXPECT_FALSE(FusedAdamOptions(0.1).eps(0.2) == FusedAdamOptions(0.1).eps(0.3));
  EXPECT_FALSE(FusedSGDOptions(0.1) == FusedAdamOptions(0.1));
}

template <class Options>
OptimizerParamGroup group(const Options& options, const Tensor& param) {
  return {{param}, std::make_unique<Options>(options)};
}

TEST(FusedOptionsTest, AGroupTakesWhatItLeavesUnsetFromTheOptimizer) {
  const FusedAdamW adamw(Groups{group(FusedAdamWOptions().weight_decay(0.01), param())},
                         FusedAdamWOptions(0.5).weight_decay(0.1).betas({0.1, 0.2}));
  const auto& options = static_cast<const FusedAdamWOptions&>(adamw.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.5);
  EXPECT_EQ(options.betas(), Betas(0.1, 0.2));
  EXPECT_EQ(options.weight_decay(), 0.01) << "set, though to what is the default anyway";
}

class AddedGroupTest : public ::testing::Test {
 protected:
  template <class Error = c10::ValueError>
  std::string message_of_adding(const OptimizerParamGroup& added) {
    const std::string message = message_of<Error>([&] { adam_.add_param_group(added); });
    EXPECT_EQ(adam_.param_groups().size(), 1U);
    return message;
  }

  FusedAdam adam_{std::vector<Tensor>{param()}};
  Tensor other_ = scalar_of(2.0).set_requires_grad(true);
};

TEST_F(AddedGroupTest, IsCheckedToo) {
  EXPECT_EQ(message_of_adding(group(FusedAdamOptions().eps(-1), other_)),
            "FusedAdam: expected eps to be at least 0, got -1");
}

TEST_F(AddedGroupTest, NeedsOptionsOfItsOptimizer) {
  EXPECT_EQ(message_of_adding(group(FusedAdamWOptions(), other_)),
            "FusedAdam: expected the options of its groups to be FusedAdamOptions, got another "
            "optimizer's");
}

TEST_F(AddedGroupTest, NeedsParametersThatAreInNoGroup) {
  EXPECT_EQ(message_of_adding(OptimizerParamGroup({other_, param()})),
            "FusedAdam: expected parameters that are in no group yet, got params[1] of sizes [] a "
            "second time");
  EXPECT_EQ(message_of_adding(OptimizerParamGroup({other_, other_})),
            "FusedAdam: expected parameters that are in no group yet, got params[1] of sizes [] a "
            "second time");
}

TEST_F(AddedGroupTest, NeedsLeaves) {
  EXPECT_TRUE(
      contains(message_of_adding<c10::Error>(OptimizerParamGroup({param().clone()})), "non-leaf"));
}

}  // namespace
}  // namespace torchamp::optim

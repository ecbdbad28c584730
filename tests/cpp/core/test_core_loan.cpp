// core::Loan: what is lent to a program's own methods, and that no step is ended by them.
#include <ATen/core/grad_mode.h>

#include <stdexcept>

#include "core/backward.h"
#include "core/loan.h"
#include "core/step.h"
#include "device.h"
#include "tensors.h"

namespace torchamp::core {
namespace {

using at::Tensor;

constexpr double kLossScale = 1024, kFine = 1 + 0x1p-20;

/// A bfloat16 parameter with a master that holds more, and a float32 one without.
class LoanTest : public DeviceTest {
 protected:
  LoanTest() {
    state_->add("LoanTest", model_, filled(kFine));
    state_->add("LoanTest", wide_);
  }

  static Tensor filled(double value, at::ScalarType dtype = at::kFloat) {
    return tensor_of({value, value, value}, dtype, device());
  }
  static void copy(const Tensor& to, const Tensor& from) {
    const at::NoGradGuard no_grad;
    to.copy_(from);
  }
  const Tensor& master() const { return state_->params()[0]->master; }
  const Tensor& grad() const { return grad_of(model_); }
  void add_grads(double value) {
    model_.mutable_grad() = filled(value, at::kBFloat16);
    wide_.mutable_grad() = filled(value);
  }
  void backward(double scaled, const BackwardOptions& options = {}) {
    Backward backward({state_}, scaler_, options);
    backward.prepare();
    add_grads(scaled);
    backward.finish();
  }
  /// By a rate of 1.
  void step() {
    Step step(state_, {&scaler_}, /*writes_model=*/false);
    step.begin("step");
    if (grad().defined()) copy(model_, model_.sub(grad()));
    step.finish();
  }

  Tensor model_ = filled(kFine, at::kBFloat16);
  Tensor wide_ = filled(kFine);
  std::shared_ptr<Masters> masters_ = std::make_shared<Masters>();
  std::shared_ptr<OptimizerState> state_ = std::make_shared<OptimizerState>(masters_);
  LossScaler scaler_{{LossScale(kLossScale), kLossScale, {}}, device()};
};

TEST_P(LoanTest, WhatIsWrittenReachesTheMasterAndTheModelOnce) {
  const Tensor view = model_.view({3});
  Loan loan(state_);
  for (const double value : {2 + 0x1p-20, 3 + 0x1p-20}) {
    loan.begin();
    loan.begin();
    EXPECT_EQ(model_.scalar_type(), at::kFloat);
    copy(model_, filled(value));
    loan.end();
    loan.end();
    EXPECT_TRUE(same_bits(model_, filled(value, at::kBFloat16)));
    EXPECT_TRUE(same_bits(master(), filled(value)));
  }
  EXPECT_TRUE(view.is_alias_of(model_));
  EXPECT_TRUE(same_bits(wide_, filled(kFine)));
}

TEST_P(LoanTest, AnExceptionKeepsWhatWasWritten) {
  try {
    Loan loan(state_);
    loan.begin();
    copy(model_, filled(2 + 0x1p-20));
    throw std::runtime_error("mine");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(same_bits(model_, filled(2, at::kBFloat16)));
  EXPECT_TRUE(same_bits(master(), filled(2 + 0x1p-20)));
}

TEST_P(LoanTest, GradsThatTheStepUsesAreFloat32AndStayAsTheyWere) {
  scaler_ = LossScaler({LossScale(1), 1, {}}, device());
  backward(2);
  const Tensor before = grad();
  Loan loan(state_);
  loan.begin();
  EXPECT_TRUE(same_bits(grad(), filled(2)));
  loan.end();
  EXPECT_TRUE(grad().is_same(before));
  loan.begin();
  grad().mul_(0.25);
  loan.end();
  EXPECT_TRUE(same_bits(grad(), filled(0.5)));
  step();
  EXPECT_TRUE(same_bits(master(), filled(kFine - 0.5)));
}

/// Of a scale_loss that delays its unscaling, of an open one, and of none that was given this.
TEST_P(LoanTest, OtherGradsStayAndAreUnscaledAfterIt) {
  const auto expect_left_alone = [&] {
    const Tensor before = grad();
    Loan loan(state_);
    loan.begin();
    EXPECT_EQ(model_.scalar_type(), at::kFloat);
    EXPECT_TRUE(grad().is_same(before));
    loan.end();
    EXPECT_TRUE(grad().is_same(before));
  };
  BackwardOptions delays;
  delays.delay_unscale = true;
  backward(kLossScale, delays);
  expect_left_alone();
  {
    Backward backward({state_}, scaler_, {});
    backward.prepare();
    expect_left_alone();
    grad().add_(kLossScale);
    expect_left_alone();
    backward.finish();
  }
  EXPECT_TRUE(same_bits(grad(), filled(2)));
  step();
  EXPECT_TRUE(same_bits(master(), filled(kFine - 2)));
  expect_left_alone();
}

TEST_P(LoanTest, AStepBetweenTwoLoansIsOne) {
  backward(2 * kLossScale);
  Loan loan(state_);
  loan.begin();
  copy(model_, filled(8));
  loan.end();
  step();
  loan.begin();
  EXPECT_TRUE(same_bits(model_, filled(6)));
  loan.end();
  EXPECT_TRUE(same_bits(model_, filled(6, at::kBFloat16)));
}

TEST_P(LoanTest, AProgramFindsAllInFloat32AndTheGradsAsTheyAre) {
  scaler_ = LossScaler({LossScale(1), 1, {}}, device());
  backward(2);
  const Tensor cast = filled(1, at::kBFloat16), before = grad();
  const Tensor contents = cast.variable_data(), view = cast.view({3});
  Loan loan(masters_, {cast, wide_});
  loan.begin();
  for (const Tensor& tensor : {model_, cast, wide_}) EXPECT_EQ(tensor.scalar_type(), at::kFloat);
  EXPECT_TRUE(grad().is_same(before));
  copy(cast, filled(3 + 0x1p-20));
  copy(model_, filled(5 + 0x1p-20));
  loan.end();
  EXPECT_TRUE(same_bits(cast, filled(3, at::kBFloat16)));
  EXPECT_TRUE(cast.is_alias_of(contents) && view.is_alias_of(cast));
  EXPECT_TRUE(same_bits(master(), filled(5 + 0x1p-20)));
  EXPECT_TRUE(same_bits(wide_, filled(kFine)));
  step();
  EXPECT_TRUE(same_bits(master(), filled(3 + 0x1p-20)));
}

TEST_P(LoanTest, DataThatReplacesWhatIsLentIsRoundedToo) {
  const Tensor cast = filled(1, at::kBFloat16);
  Loan loan(masters_, {cast});
  loan.begin();
  for (const Tensor& tensor : {model_, cast}) tensor.set_data(filled(3 + 0x1p-20));
  loan.end();
  for (const Tensor& tensor : {model_, cast}) {
    EXPECT_TRUE(same_bits(tensor, filled(3, at::kBFloat16)));
  }
  EXPECT_TRUE(same_bits(master(), filled(3 + 0x1p-20)));
}

TORCHAMP_ON_EACH_DEVICE(LoanTest);

}  // namespace
}  // namespace torchamp::core

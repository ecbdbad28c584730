#include <ATen/core/grad_mode.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/sgd.h>

#include "errors.h"
#include "frontend/optim/fused_steppers.h"
#include "fused_cases.h"

namespace torchamp {
namespace {

using at::Tensor;

class PairedTest : public FusedCaseTest {};

TEST_P(PairedTest, StepsAsLibTorch) {
  const auto params = make_params(device()), exact = make_params(device(), at::kDouble);
  const auto ours = each().ours(our_groups(each(), params));
  const auto theirs = each().theirs(their_groups(each(), exact));
  train(*ours, params, 10);
  train(*theirs, exact, 10);
  EXPECT_LE(distance(params, exact), 2e-6);
}

TEST_P(PairedTest, Float64IsSteppedInFloat64) {
  const auto params = make_params(device(), at::kDouble), exact = copies_of(params);
  const auto ours = each().ours(our_groups(each(), params));
  const auto theirs = each().theirs(their_groups(each(), exact));
  train(*ours, params, 5);
  train(*theirs, exact, 5);
  EXPECT_LE(distance(params, exact), 1e-12);
}

TORCHAMP_ON_FUSED_CASES(PairedTest, paired_cases());

class FusedOptimizersTest : public FusedCaseTest {
 protected:
  static FusedStepper::StepInputs skipping(bool skip) {
    return {{}, scalar_of(skip ? 1.0 : 0.0, at::kFloat, device())};
  }
};

TEST_P(FusedOptimizersTest, MomentsChangeTheirDtype) {
  const auto params = make_params(device()), wide = copies_of(params);
  const auto small = ours(params), large = ours(wide);
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    small->set_storage(optim::StorageOptions().state_dtype(dtype));
    train(*small, params, 3);
    train(*large, wide, 3);
    const auto* state = state_of(*small, params[0]);
    if (state == nullptr || !state->get("exp_avg").defined()) continue;
    EXPECT_EQ(state->get("exp_avg").scalar_type(), dtype);
  }
  EXPECT_LE(distance(params, wide), 0.1);
}

TEST_P(FusedOptimizersTest, HalfIsNotRoundedStochastically) {
  const auto params = make_params(device(), at::kHalf);
  const auto optimizer = ours(params);
  optimizer->set_storage(optim::StorageOptions().stochastic_rounding(true));
  set_grads(params, 0);
  EXPECT_EQ(message_of<c10::ValueError>([&] { optimizer->step(); }),
            "FusedStepper: expected params[0] to be bfloat16 or wider for stochastic rounding, got "
            "Half");
}

TEST_P(FusedOptimizersTest, LowPrecisionParamsAreRoundedOnce) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto params = make_params(device(), dtype);
    std::vector<Tensor> wide;
    for (const Tensor& param : params) {
      wide.push_back(param.detach().to(at::kFloat).set_requires_grad(true));
    }
    const auto rounding = ours(params), exact = ours(wide);
    set_grads(params, 0);
    for (size_t i = 0; i < wide.size(); ++i) {
      wide[i].mutable_grad() = params[i].grad().to(at::kFloat);
    }
    rounding->step();
    exact->step();
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_TRUE(same_bits(params[i], wide[i].to(dtype))) << i;
      const auto* state = state_of(*rounding, params[i]);
      if (state == nullptr) continue;
      for (const auto& [name, tensor] : state->tensors()) {
        EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
      }
    }
  }
}

TEST_P(FusedOptimizersTest, ASkippedStepLeavesEveryByte) {
  const auto params = make_params(device());
  const auto optimizer = ours(params);
  train(*optimizer, params, 2);
  const auto before = everything(*optimizer, params);
  set_grads(params, 2);
  params[1].mutable_grad().fill_(NAN);
  optimizer->steppers()->step(*optimizer, skipping(true));
  EXPECT_TRUE(same_bits(everything(*optimizer, params), before));
  set_grads(params, 2);
  optimizer->steppers()->step(*optimizer, skipping(false));
  EXPECT_FALSE(same_bits(params[1], before[1]));
}

TEST_P(FusedOptimizersTest, TheFirstStepMayBeSkipped) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto optimizer = ours(params), plain = ours(others);
  set_grads(params, 0);
  optimizer->steppers()->step(*optimizer, skipping(true));
  train(*optimizer, params, 2);
  train(*plain, others, 2);
  EXPECT_TRUE(same_bits(everything(*optimizer, params), everything(*plain, others)));
}

TEST_P(FusedOptimizersTest, GradsAreMultipliedWithTheFactor) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto optimizer = ours(params), plain = ours(others);
  for (int step = 0; step < 3; ++step) {
    set_grads(params, step);
    for (const Tensor& param : params) param.mutable_grad().mul_(1024);
    optimizer->steppers()->step(*optimizer, {scalar_of(1.0 / 1024, at::kFloat, device()), {}});
    train(*plain, others, 1, step);
  }
  EXPECT_TRUE(same_bits(everything(*optimizer, params), everything(*plain, others)));
}

TEST_P(FusedOptimizersTest, ParamsWithoutGradsAreSkipped) {
  const auto params = make_params(device());
  const auto optimizer = ours(params);
  set_grads(params, 0);
  params[1].mutable_grad().reset();
  const Tensor before = params[1].detach().clone();
  optimizer->step();
  EXPECT_TRUE(same_bits(params[1], before));
  EXPECT_EQ(state_of(*optimizer, params[1]), nullptr);
  train(*optimizer, params, 1, 1);
  EXPECT_FALSE(same_bits(params[1], before));
  if (each().name == "sgd") return;  // it keeps nothing
  EXPECT_EQ(state_of(*optimizer, params[0])->get("step").item<int64_t>(), 2);
  EXPECT_EQ(state_of(*optimizer, params[1])->get("step").item<int64_t>(), 1);
}

TEST_P(FusedOptimizersTest, AStepOfNoGradsIsNone) {
  const auto params = make_params(device());
  const auto optimizer = ours(params);
  const auto before = everything(*optimizer, params);
  optimizer->step();
  EXPECT_TRUE(same_bits(everything(*optimizer, params), before));
}

TEST_P(FusedOptimizersTest, GroupsMayBeAdded) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto at_once = each().ours(our_groups(each(), others));
  const auto one_by_one = ours({params[0], params[1]});
  one_by_one->add_param_group(our_groups(each(), params)[1]);
  train(*at_once, others, 3);
  train(*one_by_one, params, 3);
  EXPECT_TRUE(same_bits(everything(*one_by_one, params), everything(*at_once, others)));
}

TEST_P(FusedOptimizersTest, ItsStateStaysWhenAGroupIsAddedInTheMiddle) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto growing = ours({params[0], params[1]}), plain = ours({others[0], others[1]});
  train(*growing, params, 2);
  train(*plain, others, 2);
  if (each().name != "lamb") {  // which clips by the norm of all grads
    growing->add_param_group(our_groups(each(), params)[1]);
  }
  train(*growing, params, 2, 2);
  train(*plain, others, 2, 2);
  EXPECT_TRUE(same_bits(everything(*growing, {params[0], params[1]}),
                        everything(*plain, {others[0], others[1]})));
}

/// As a model's to() does, which leaves the parameters' identities.
TEST_P(FusedOptimizersTest, ParamsMayBecomeFloat64) {
  const auto params = make_params(device());
  const auto optimizer = ours(params);
  train(*optimizer, params, 2);
  for (const Tensor& param : params) Tensor(param).set_data(param.detach().to(at::kDouble));
  for (const Tensor& param : params) param.mutable_grad().reset();
  train(*optimizer, params, 1, 2);
  const auto* state = state_of(*optimizer, params[0]);
  if (state == nullptr) return;
  EXPECT_EQ(state->get("step").item<int64_t>(), 3);
  for (const auto& [name, tensor] : state->tensors()) {
    EXPECT_EQ(tensor.scalar_type(), state->is_scalar(name) ? at::kFloat : at::kDouble) << name;
  }
}

TEST_P(FusedOptimizersTest, SchedulersTakeThem) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto optimizer = ours(params), plain = ours(others);
  const double lr = plain->param_groups()[0].options().get_lr();
  torch::optim::StepLR scheduler(*optimizer, /*step_size=*/1, /*gamma=*/0.5);
  for (int step = 0; step < 3; ++step) {
    scheduler.step();
    plain->param_groups()[0].options().set_lr(lr * std::pow(0.5, step));
    train(*optimizer, params, 1, step);
    train(*plain, others, 1, step);
  }
  EXPECT_TRUE(same_bits(everything(*optimizer, params), everything(*plain, others)));
}

TEST_P(FusedOptimizersTest, SparseGradsAreRefused) {
  const auto params = make_params(device());
  const auto optimizer = ours(params);
  set_grads(params, 0);
  params[1].mutable_grad() = params[1].grad().to_sparse();
  const auto before = everything(*optimizer, params);
  const std::string message = message_of<c10::TypeError>([&] { optimizer->step(); });
  EXPECT_TRUE(contains(message,
                       ": expected the grad of param_groups[0].params()[1] to be dense, "
                       "got layout Sparse"))
      << message;
  EXPECT_TRUE(same_bits(everything(*optimizer, params), before));
}

TORCHAMP_ON_FUSED_CASES(FusedOptimizersTest, fused_cases());

class FusedAdamTest : public DeviceTest {};

TEST_P(FusedAdamTest, AClosureIsCalledOnceWithGrads) {
  const auto params = make_params(device());
  optim::FusedAdam adam(params, 1e-3);
  int calls = 0;
  const at::NoGradGuard no_grad;
  const Tensor loss = adam.step([&] {
    calls += 1;
    const Tensor sum = params[1].square().sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(loss.defined());
  EXPECT_NE(state_of(adam, params[1]), nullptr);
}

TEST_P(FusedAdamTest, GroupsMayDifferInTheirAlgorithm) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto options = std::make_unique<optim::FusedSGDOptions>();
  const auto add = [&](optim::FusedSGD& sgd, const Tensor& param, double momentum) {
    options->momentum(momentum);
    sgd.add_param_group({{param}, options->clone()});
  };
  optim::FusedSGD mixed(Groups{}), plain(Groups{}), moved(Groups{});
  for (const size_t i : {0, 1, 2, 3}) {
    const double momentum = i % 2 == 1 ? 0.5 : 0.0;
    add(mixed, params[i], momentum);
    add(momentum != 0.0 ? moved : plain, others[i], momentum);
  }
  for (int step = 0; step < 3; ++step) {
    train(mixed, params, 1, step);
    train(plain, others, 1, step);
    moved.step();
  }
  for (const size_t i : {0, 1, 2, 3}) {
    EXPECT_TRUE(same_bits(everything(mixed, {params[i]}),
                          everything(i % 2 == 1 ? moved : plain, {others[i]})))
        << i;
  }
}

TORCHAMP_ON_EACH_DEVICE(FusedAdamTest);

}  // namespace
}  // namespace torchamp

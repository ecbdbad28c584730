// Wrong uses of the fused optimizers and of GradScaler.
#include <torch/optim/sgd.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/optim/adam.h>

#include "tensors.h"
#include "wrong_use.h"

namespace torchamp::wrong_use {
namespace {

using at::Tensor;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;

Tensor param() {
  return tensor_of({1, 2}).set_requires_grad(true);
}

std::vector<Tensor> params() {
  return {param()};
}

optim::StorageOptions stored_in(at::ScalarType dtype) {
  return optim::StorageOptions().state_dtype(dtype);
}

/// Steps by a grad of ones.
template <class Optimizer>
void step(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (Tensor& each : group.params()) each.mutable_grad() = at::ones_like(each);
  }
  optimizer.step();
}

std::vector<WrongUse> of_fused() {
  using optim::FusedAdam;
  return {
      {"states_in_float16",
       [] {
         FusedAdam adam(params(), 0.1, stored_in(at::kHalf));
         step(adam);
       },
       error<c10::ValueError>("expected state_dtype to be float32 or bfloat16, got Half")},
      {"a_parameter_in_two_groups",
       [] {
         const Tensor one = param();
         FusedAdam(std::vector<OptimizerParamGroup>{{{one}}, {{one}}}, 0.1);
       },
       error<c10::ValueError>(R"(expected parameters that are in no group yet, got params\[0\])")},
      {"an_undefined_parameter", [] { FusedAdam({Tensor()}, 0.1); },
       error<c10::TypeError>(R"(^FusedAdam: expected params\[0\] to be a tensor, got none)")},
      {"an_integer_parameter",
       [] {
         FusedAdam adam({at::ones({2}, at::kLong)}, 0.1);
         adam.param_groups()[0].params()[0].mutable_grad() = at::ones({2}, at::kLong);
         adam.step();
       },
       error<c10::TypeError>("to be float16, bfloat16, float32 or float64, got Long")},
      {"a_parameter_resized_between_steps",
       [] {
         const Tensor one = param();
         FusedAdam adam({one}, 0.1);
         step(adam);
         one.mutable_grad().reset();
         one.set_data(at::ones({3}));
         step(adam);
       },
       error(R"(to have the sizes of .*, \[3\], got \[2\])")},
  };
}

/// One parameter that a GradScaler trains.
struct Scaled {
  Tensor weight = param();
  SGD sgd{{weight}, 1.0};
  GradScaler scaler{4.0};

  void backward() { scaler.scale(weight.sum()).backward(); }
};

std::vector<WrongUse> of_grad_scaler() {
  return {
      {"a_growth_factor_of_nan", [] { GradScaler(GradScalerOptions().growth_factor(kNaN)); },
       error<c10::ValueError>("^GradScaler: expected growth_factor to be above 1, got nan$")},
      {"a_backoff_factor_of_0", [] { GradScaler(GradScalerOptions().backoff_factor(0)); },
       error<c10::ValueError>(
           "^GradScaler: expected backoff_factor to be between 0 and 1, got 0$")},
      {"a_later_growth_factor_below_1", [] { GradScaler().set_growth_factor(0.5); },
       error<c10::ValueError>("^GradScaler: expected growth_factor to be above 1, got 0.5$")},
      {"an_initial_scale_of_0", [] { GradScaler scaler(0.0); },
       error<c10::ValueError>("expected the initial scale to be positive and finite, got 0$")},
      {"step_before_scale",
       [] {
         Scaled run;
         run.scaler.step(run.sgd);
       },
       error("^GradScaler::step: expected scale\\(\\) to be called first$")},
      {"update_before_scale", [] { Scaled().scaler.update(); },
       error("^GradScaler::update: expected scale\\(\\) to be called first$")},
      {"scale_of_an_integer_tensor", [] { GradScaler().scale(at::ones({}, at::kLong)); },
       error<c10::TypeError>(
           "^GradScaler::scale: expected outputs to be a floating-.*, got .*Long")},
      {"update_to_0", [] { GradScaler().update(0.0); },
       error<c10::ValueError>("to be positive and finite, got 0$")},
      {"update_to_no_scale", [] { GradScaler().update(Tensor()); },
       error<c10::ValueError>(
           "^GradScaler::update: expected new_scale to have one element, got no")},
      {"the_unscaled_loss",
       [] {
         Scaled run;
         run.scaler.scale(run.weight.sum());
         run.weight.sum().mul(4).backward();
         run.scaler.step(run.sgd);
         EXPECT_TRUE(same_bits(run.weight.detach(), tensor_of({0, 1})));
       },
       right()},
      {"overflowed_params_of_an_unrelated_optimizer",
       [] {
         Scaled run, other;
         run.backward();
         run.scaler.step(run.sgd);
         EXPECT_TRUE(run.scaler.overflowed_params(other.sgd).empty());
       },
       right()},
      {"a_moved_scaler",
       [] {
         Scaled run;
         const GradScaler moved = std::move(run.scaler);
         run.backward();
       },
       error("^GradScaler::scale: expected a GradScaler that holds its scale, got one that was "
             "moved from$")},
  };
}

class WrongUseOfFusedTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseOfFusedTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Fused, WrongUseOfFusedTest, ::testing::ValuesIn(of_fused()), name_of);
INSTANTIATE_TEST_SUITE_P(GradScaler, WrongUseOfFusedTest, ::testing::ValuesIn(of_grad_scaler()),
                         name_of);

}  // namespace
}  // namespace torchamp::wrong_use

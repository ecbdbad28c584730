// Wrong uses of steps, and of what comes between a backward and its step.
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/lbfgs.h>
#include <torchamp/clip.h>
#include <torchamp/optim/adam.h>

#include "wrong_use_training.h"

namespace torchamp::wrong_use {
namespace {

using optim::FusedAdam;

/// Of the parameters that the optimizer steps, to see that a step writes none.
template <class O>
std::vector<Tensor> values_of(Run<O>& run) {
  return clones(run.optimizer().master_params());
}

/// Its grads are not scaled, and are used.
template <class O>
void backward_without_scale_loss(const Options& options) {
  Run<O> run(options);
  const auto before = values_of(run);
  run.loss().backward();
  run.step();
  EXPECT_FALSE(same_bits(values_of(run), before));
}

std::vector<WrongUse> of_steps() {
  const auto no_grads = "^torchamp: Optimizer::step: expected grads, got none, so nothing changes";
  return {
      {"a_fused_step_without_a_backward", [] { Run<FusedAdam>().step(); }, warning(no_grads)},
      {"two_steps_after_a_backward",
       [] {
         Run run;
         run.backward();
         run.step();
         const auto before = values_of(run);
         run.step();
         EXPECT_TRUE(same_bits(values_of(run), before));
       },
       warning(no_grads)},
      {"zero_grad_before_the_step",
       [] {
         Run run;
         run.backward();
         run.optimizer().zero_grad();
         run.step();
       },
       warning(no_grads)},
      {"the_models_zero_grad_before_the_step",
       [] {
         Run run;
         run.backward();
         run.net->zero_grad();
         run.step();
       },
       warning(no_grads)},
      {"zero_grad_of_the_wrapped_optimizer",
       [] {
         Run run, expected;
         for (const Tensor& param : expected.net->parameters()) param.detach().fill_(0.5);
         for (const Tensor& param : run.net->parameters()) param.detach().fill_(0.5);
         for (Run<>* each : {&run, &expected}) each->backward();
         run.optimizer_given.zero_grad();
         expected.optimizer().zero_grad();
         for (Run<>* each : {&run, &expected}) {
           each->net->zero_grad();
           each->backward();
           each->step();
         }
         EXPECT_TRUE(same_bits(values_of(run), values_of(expected)));
       },
       right()},
      {"a_backward_without_scale_loss_at_O0",
       [] { backward_without_scale_loss<SGD>(Options("O0")); }, right()},
      {"a_backward_without_scale_loss_at_O1",
       [] { backward_without_scale_loss<SGD>(at_level("O1")); }, right()},
      {"a_backward_without_scale_loss_at_O2",
       [] { backward_without_scale_loss<SGD>(at_level("O2")); }, right()},
      {"a_backward_without_scale_loss_at_O5",
       [] { backward_without_scale_loss<SGD>(Options("O5")); }, right()},
      {"a_fused_backward_without_scale_loss",
       [] { backward_without_scale_loss<FusedAdam>(at_level("O2")); }, right()},
      {"writing_data_of_the_masters_grads",
       [] {
         Run run;
         run.backward();
         const auto before = values_of(run);
         for (const Tensor& param : run.optimizer().master_params()) param.grad().data().zero_();
         run.step();
         EXPECT_TRUE(same_bits(values_of(run), before));
       },
       right()},
      {"lbfgs_by_a_dynamic_scale",
       [] {
         Run<torch::optim::LBFGS> run(Options("O2").verbosity(0));
         run.optimizer().step([&] { return run.loss(); });
       },
       error("^Optimizer::step: expected a fixed loss scale for an optimizer that calls its "
             "closure several times, got a dynamic one, which skips steps; set "
             "Options::loss_scale, or take O4 or O5, which need none. With an optimizer that "
             "needs the grads once, run the backward in scale_loss, then call step\\(\\)$")},
      {"lbfgs_without_a_closure",
       [] {
         Run<torch::optim::LBFGS> run(Options("O0"));
         run.backward();
         run.step();
       },
       error("LBFGS requires a closure function")},
      {"too_many_overflows",
       [] {
         Run run(Options("O2").verbosity(0).max_consecutive_skips(2));
         for (int i = 0; i < 3; ++i) {
           scale_loss(run.loss() * kInfinity, run.optimizer()).backward();
           run.step();
         }
       },
       error("^expected fewer than max_consecutive_skips = 2 skipped steps in a row, got 2")},
      {"a_group_with_a_known_parameter",
       [] {
         Run run;
         run.optimizer().add_param_group({{run.net->weight}});
       },
       error("^Optimizer::add_param_group: expected parameters that are in no group yet, got one "
             "of sizes \\[2, 4\\] that the optimizer steps already$")},
      {"a_group_with_a_master",
       [] {
         Run run;
         run.optimizer().add_param_group({{run.optimizer().master_params()[0]}});
       },
       error(
           "^Optimizer::add_param_group: expected parameters that are in no group yet, got one o")},
      {"a_known_parameter_behind_its_back",
       [] {
         Run run;
         run.optimizer_given.add_param_group({{run.net->weight}});
         run.step();
       },
       error<c10::ValueError>("^Optimizer: expected each parameter in one group, and once, got one "
                              "of sizes \\[2, 4\\] twice$")},
      {"a_group_of_no_leaf",
       [] {
         Run run;
         run.optimizer().add_param_group({{run.net->weight * 2}});
       },
       error("can't optimize a non-leaf Tensor")},
      {"emptied_groups",
       [] {
         Run run;
         run.optimizer_given.param_groups().clear();
         run.step();
       },
       error(
           "^Optimizer: expected the optimizer that initialize was given to hold its parameters")},
  };
}

std::vector<WrongUse> of_clipping() {
  const auto clip = [](double max_norm) {
    return [max_norm] {
      Run run;
      run.backward();
      clip_grad_norm_(run.optimizer(), max_norm);
    };
  };
  const auto clip_value = [](double value) {
    return [value] {
      Run run;
      run.backward();
      clip_grad_value_(run.optimizer(), value);
    };
  };
  const std::vector<Optimizer> none;
  return {
      {"a_negative_norm", clip(-1),
       error<c10::ValueError>("^clip_grad_norm_: expected max_norm to be at least 0, got -1$")},
      {"a_norm_of_nan", clip(kNaN),
       error<c10::ValueError>("^clip_grad_norm_: expected max_norm to be at least 0, got nan$")},
      {"a_norm_of_minus_infinity", clip(-kInfinity),
       error<c10::ValueError>("^clip_grad_norm_: expected max_norm to be at least 0, got -inf$")},
      {"a_negative_value", clip_value(-0.5),
       error<c10::ValueError>(
           "^clip_grad_value_: expected clip_value to be at least 0, got -0.5$")},
      {"a_value_of_nan", clip_value(kNaN),
       error<c10::ValueError>("^clip_grad_value_: expected clip_value to be at least 0, got nan$")},
      {"no_optimizers", [=] { clip_grad_norm_(none, 1); },
       error<c10::ValueError>("^clip_grad_norm_: expected at least one optimizer, got none$")},
      {"no_optimizers_for_values", [=] { clip_grad_value_(none, 1); },
       error<c10::ValueError>("^clip_grad_value_: expected at least one optimizer, got none$")},
      {"a_negative_norm_when_disabled",
       [] { clip_grad_norm_(Run(Options("O2").enabled(false)).optimizer(), -1); },
       error<c10::ValueError>("^clip_grad_norm_: expected max_norm to be at least 0, got -1$")},
      {"handles_that_were_released_at_O0",
       [] {
         Run run(Options("O0"));
         release(run.amped);
         clip_grad_norm_(run.optimizer(), 1);
       },
       error("^amp: expected a model and optimizers in training, got those of an initialize that")},
      {"an_enabled_and_a_disabled_one",
       [] {
         Run one, other(Options("O2").enabled(false));
         clip_grad_norm_({one.optimizer(), other.optimizer()}, 1);
       },
       error("^clip_grad_norm_: expected optimizers of one initialize, got one that is enabled and "
             "one that is not$")},
      {"no_parameters_when_disabled",
       [] {
         Run run(Options("O2").enabled(false));
         run.optimizer().param_groups().clear();
         EXPECT_EQ(clip_grad_norm_(run.optimizer(), 1).item<float>(), 0);
       },
       right()},
      {"before_any_backward",
       [] { EXPECT_EQ(clip_grad_norm_(Run().optimizer(), 1).item<float>(), 0); }, right()},
      {"an_optimizer_twice",
       [] {
         Run run;
         run.backward();
         const Tensor once = clip_grad_norm_(run.optimizer(), kInfinity);
         const std::vector<Optimizer> both{run.optimizer(), run.optimizer()};
         EXPECT_TRUE(same_bits(clip_grad_norm_(both, kInfinity), once));
       },
       right()},
  };
}

class WrongUseOfStepsTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseOfStepsTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Steps, WrongUseOfStepsTest, ::testing::ValuesIn(of_steps()), name_of);
INSTANTIATE_TEST_SUITE_P(Clipping, WrongUseOfStepsTest, ::testing::ValuesIn(of_clipping()),
                         name_of);

}  // namespace
}  // namespace torchamp::wrong_use

// Wrong uses of scale_loss, of steps and of clipping that C++ alone has.
#include <torch/optim/lbfgs.h>
#include <torchamp/clip.h>
#include <torchamp/grad_scaler.h>

#include "wrong_use_training.h"

namespace torchamp::wrong_use {
namespace {

std::vector<WrongUse> of_scale_loss() {
  const auto end_of_scale_loss =
      "^scale_loss: expected the backward of the scaled loss before the end of its scale_loss";
  return {
      {"no_optimizers", [] { scale_loss(Run().loss(), std::vector<Optimizer>()).backward(); },
       error<c10::ValueError>("^scale_loss: expected at least one optimizer, got none$")},
      {"an_optimizer_twice",
       [] {
         Run run;
         scale_loss(run.loss(), std::vector<Optimizer>{run.optimizer(), run.optimizer()})
             .backward();
       },
       error<c10::ValueError>("^scale_loss: expected each optimizer once, got optimizers\\[0\\] "
                              "again as optimizers\\[1\\]$")},
      {"a_backward_after_finish",
       [] {
         Run run;
         scale_loss scaled_loss(run.loss(), run.optimizer());
         scaled_loss.finish();
         scaled_loss.backward();
       },
       error(end_of_scale_loss)},
      {"a_backward_in_another_call_of_a_body",
       [] {
         Run run;
         Tensor kept;
         scale_loss(run.loss(), run.optimizer(), [&](const Tensor& scaled) { kept = scaled; });
         kept.backward();
       },
       error(end_of_scale_loss)},
      {"a_grad_scaler_beside_initialize",
       [] {
         Run run;
         GradScaler scaler(4.0);
         scaler.scale(run.loss()).backward();
         scaler.step(run.optimizer_given);
       },
       error("^GradScaler::step: expected an optimizer of parameters without float32 masters")},
      {"a_grad_scaler_beside_initialize_at_O1",
       [] {
         Run run(at_level("O1"));
         GradScaler scaler(4.0);
         scaler.scale(run.loss()).backward();
         scaler.step(run.optimizer_given);
       },
       right()},
      {"two_initializes_at_once",
       [] {
         Run run, other(at_level("O5"));
         scale_loss of_run(run.loss(), run.optimizer()), of_other(other.loss(), other.optimizer());
         of_other.backward();
         of_run.backward();
         of_run.finish();
         of_other.finish();
         EXPECT_TRUE(run.step() && other.step());
       },
       right()},
  };
}

/// Of the parameters that the optimizer steps.
std::vector<Tensor> values_of(Run<>& run) {
  return clones(run.optimizer().master_params());
}

std::vector<WrongUse> of_steps() {
  return {
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
  };
}

std::vector<WrongUse> of_clipping() {
  const std::vector<Optimizer> none;
  return {
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
  };
}

class WrongUseOfStepsTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseOfStepsTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(ScaleLoss, WrongUseOfStepsTest, ::testing::ValuesIn(of_scale_loss()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Steps, WrongUseOfStepsTest, ::testing::ValuesIn(of_steps()), name_of);
INSTANTIATE_TEST_SUITE_P(Clipping, WrongUseOfStepsTest, ::testing::ValuesIn(of_clipping()),
                         name_of);

}  // namespace
}  // namespace torchamp::wrong_use

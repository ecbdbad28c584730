// Wrong uses of scale_loss, with one optimizer and with several.
#include <torch/autograd.h>
#include <torchamp/clip.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/optim/adam.h>

#include <stdexcept>

#include "wrong_use_training.h"

namespace torchamp::wrong_use {
namespace {

using optim::FusedAdam;

std::vector<WrongUse> of_scale_loss() {
  const auto end_of_scale_loss =
      "^scale_loss: expected the backward of the scaled loss before the end of its scale_loss";
  const auto another_loss = "^scale_loss: expected the backward of the scaled loss, got grads of a";
  return {
      {"no_loss", [] { scale_loss(Tensor(), Run().optimizer()).backward(); },
       error<c10::TypeError>(
           "^scale_loss: expected loss to be a floating-point tensor, got none$")},
      {"an_integer_loss", [] { scale_loss(at::ones({}, at::kLong), Run().optimizer()).backward(); },
       error<c10::TypeError>(
           "^scale_loss: expected loss to be a floating-point tensor, got .*Long")},
      {"a_boolean_loss", [] { scale_loss(at::ones({}, at::kBool), Run().optimizer()).backward(); },
       error<c10::TypeError>(
           "^scale_loss: expected loss to be a floating-point tensor, got .*Bool")},
      {"a_complex_loss",
       [] { scale_loss(at::ones({}, at::kComplexFloat), Run().optimizer()).backward(); },
       error<c10::TypeError>(
           "^scale_loss: expected loss to be a floating-point tensor, got .*Compl")},
      {"an_integer_loss_that_needs_no_scale",
       [] {
         Run run(Options("O5"));
         scale_loss(at::ones({}, at::kLong), run.optimizer()).backward();
       },
       error<c10::TypeError>(
           "^scale_loss: expected loss to be a floating-point tensor, got .*Long")},
      {"a_loss_of_constants", [] { scale_loss(at::ones({}), Run().optimizer()).backward(); },
       error("does not require grad and does not have a grad_fn")},
      {"a_loss_per_element",
       [] {
         Run run;
         scale_loss(run.amped.model(at::ones({2, 4})), run.optimizer()).backward();
       },
       error("grad can be implicitly created only for scalar outputs")},
      {"a_loss_id_too_large",
       [] {
         Run run;
         run.backward({1});
       },
       error<c10::IndexError>("^scale_loss: expected loss_id to be below num_losses, 1, got 1$")},
      {"a_negative_loss_id",
       [] {
         Run run;
         run.backward({-1});
       },
       error<c10::IndexError>("^scale_loss: expected loss_id to be below num_losses, 1, got -1$")},
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
      {"optimizers_of_two_initializes",
       [] {
         Run run, other;
         const std::vector<Optimizer> both{run.optimizer(), other.optimizer()};
         scale_loss(run.loss() + other.loss(), both).backward();
       },
       error<c10::ValueError>("^scale_loss: expected optimizers\\[1\\] to come from the initialize "
                              "of optimizers\\[0\\], got one from another initialize$")},
      {"one_inside_another",
       [] {
         Run run;
         scale_loss outer(run.loss(), run.optimizer());
         scale_loss inner(run.loss(), run.optimizer());
       },
       error("^scale_loss: expected the optimizer not to be inside an open scale_loss, but it is; "
             "c")},
      {"the_unscaled_loss_at_O2",
       [] {
         Run run;
         const Tensor loss = run.loss();
         scale_loss scaled_loss(loss, run.optimizer());
         loss.backward();
       },
       error(another_loss)},
      {"the_backward_of_another_loss",
       [] {
         Run run;
         const Tensor other = run.loss();
         scale_loss scaled_loss(run.loss(), run.optimizer());
         (other * 2).backward();
       },
       error(another_loss)},
      {"a_backward_after_finish",
       [] {
         Run run;
         scale_loss scaled_loss(run.loss(), run.optimizer());
         scaled_loss.finish();
         scaled_loss.backward();
       },
       error(end_of_scale_loss)},
      {"a_backward_inside_and_after",
       [] {
         Run run(at_level("O1"));
         Tensor scaled;
         {
           scale_loss scaled_loss(run.loss(), run.optimizer());
           scaled_loss.backward({}, /*retain_graph=*/true);
           scaled = scaled_loss.tensor();
         }
         scaled.backward();
       },
       error(end_of_scale_loss)},
      {"a_backward_after_an_exception",
       [] {
         Run run;
         Tensor scaled;
         try {
           scale_loss scaled_loss(run.loss(), run.optimizer());
           scaled = scaled_loss.tensor();
           throw std::runtime_error("mine");
         } catch (const std::runtime_error&) {
           scaled.backward();
         }
       },
       error(end_of_scale_loss)},
      {"two_backwards_inside",
       [] {
         Run run;
         scale_loss scaled_loss(run.loss(), run.optimizer());
         scaled_loss.backward();
         scaled_loss.backward();
       },
       error("Trying to backward through the graph a second time")},
      {"a_backward_in_another_call_of_a_body",
       [] {
         Run run;
         Tensor kept;
         scale_loss(run.loss(), run.optimizer(), [&](const Tensor& scaled) { kept = scaled; });
         kept.backward();
       },
       error(end_of_scale_loss)},
      {"a_part_of_the_scaled_loss",
       [] {
         Run run;
         {
           scale_loss scaled_loss(run.loss(), run.optimizer());
           (scaled_loss.tensor() * 0.5).backward();
         }
         EXPECT_TRUE(run.step());
       },
       right()},
      {"grads_without_a_backward",
       [] {
         Run run(at_level("O1"));
         {
           scale_loss scaled_loss(run.loss(), run.optimizer());
           const Tensor weight = run.net->weight;
           weight.mutable_grad() = torch::autograd::grad({scaled_loss.tensor()}, {weight})[0];
         }
         const Tensor expected = torch::autograd::grad({run.loss()}, {run.net->weight})[0];
         EXPECT_TRUE(at::allclose(run.net->weight.grad(), expected));
       },
       right()},
      {"no_backward_inside",
       [] {
         Run run;
         { scale_loss scaled_loss(run.loss(), run.optimizer()); }
       },
       right()},
      {"a_step_inside_at_O1",
       [] {
         Run run(at_level("O1"));
         scale_loss scaled_loss(run.loss(), run.optimizer());
         scaled_loss.backward();
         run.step();
       },
       error(
           "^Optimizer::step: expected the optimizer not to be inside an open scale_loss, but it")},
      {"a_step_inside_at_O2",
       [] {
         Run<FusedAdam> run;
         scale_loss scaled_loss(run.loss(), run.optimizer());
         scaled_loss.backward();
         run.step();
       },
       error(
           "^Optimizer::step: expected the optimizer not to be inside an open scale_loss, but it")},
      {"clipping_inside",
       [] {
         Run run;
         scale_loss scaled_loss(run.loss(), run.optimizer());
         scaled_loss.backward();
         clip_grad_norm_(run.optimizer(), 1.0);
       },
       error("^clip_grad_norm_: expected unscaled grads, got grads still scaled")},
      {"a_step_on_delayed_grads",
       [] {
         Run run;
         run.backward({0, /*delay_unscale=*/true});
         run.step();
       },
       error("^Optimizer::step: expected unscaled grads, got grads still scaled .*delay_unscale")},
      {"a_loss_of_nan",
       [] {
         Run run(Options("O2"));
         scale_loss(run.loss() * kNaN, run.optimizer()).backward();
         EXPECT_FALSE(run.step());
       },
       warning("loss 0 is not finite: step skipped, loss scale now 32768")},
  };
}

/// A step of both, of grads that only the first was given.
void leave_out_the_second(const Options& options, const std::function<void(Two&)>& zero) {
  Two two(options);
  scale_loss(two.loss_of_both(), two.optimizer(0)).backward();
  EXPECT_TRUE(two.optimizer(0).step());
  zero(two);
  scale_loss(two.loss_of_second(), two.optimizer(1)).backward();
  EXPECT_TRUE(two.optimizer(1).step());
}

/// A step of grads that only the optimizer of another initialize was given.
void give_another_initializes(const Options& options, const std::function<void(Run<>&)>& zero) {
  Run run(options), other(options);
  scale_loss(run.loss(), other.optimizer()).backward();
  zero(run);
  run.backward();
  EXPECT_TRUE(run.step());
}

std::vector<WrongUse> of_several() {
  const auto not_given =
      "^Optimizer::step: expected grads of backwards in .* give it all optimizer";
  const auto step_both = [](const char* level) {
    Two two(at_level(level));
    scale_loss(two.loss_of_both(), two.optimizer(0)).backward();
    two.optimizer(0).step();
    two.optimizer(1).step();
  };
  const auto clip_both = [](const char* level) {
    Two two(at_level(level));
    scale_loss(two.loss_of_both(), two.optimizer(0)).backward();
    clip_grad_norm_(two.amped.optimizers, 1.0);
    EXPECT_TRUE(two.optimizer(0).step());
  };
  return {
      {"clip_for_an_optimizer_not_given", [=] { clip_both("O1"); },
       error("^clip_grad_norm_: expected grads of backwards in .* give it all optimizer")},
      {"clip_for_an_optimizer_not_given_at_O2", [=] { clip_both("O2"); }, right()},
      {"an_optimizer_not_given_at_O1", [=] { step_both("O1"); }, error(not_given)},
      {"an_optimizer_not_given_at_O2", [=] { step_both("O2"); }, error(not_given)},
      {"grads_of_another_that_the_model_zeroes",
       [] { leave_out_the_second(at_level("O1"), [](Two& two) { two.second->zero_grad(); }); },
       right()},
      {"grads_of_another_that_no_scale_changes",
       [] { leave_out_the_second(Options("O4"), [](Two&) {}); }, right()},
      {"the_optimizer_of_another_initialize",
       [] { give_another_initializes(at_level("O1"), [](Run<>&) {}); }, error(not_given)},
      {"the_optimizer_of_another_initialize_before_a_zeroing",
       [] { give_another_initializes(at_level("O1"), [](Run<>& run) { run.net->zero_grad(); }); },
       right()},
      {"the_optimizer_of_another_initialize_whose_scale_is_1",
       [] { give_another_initializes(Options("O1").loss_scale(1.0), [](Run<>&) {}); }, right()},
      {"an_optimizer_that_the_loss_does_not_reach",
       [] {
         Two two;
         scale_loss(two.loss_of_first(), two.amped.optimizers).backward();
         EXPECT_TRUE(two.optimizer(0).step());
         two.optimizer(1).step();
       },
       warning("^torchamp: Optimizer::step: expected grads, got none")},
      {"the_optimizer_of_another_initialize_at_O2",
       [] {
         Run run, other;
         scale_loss(run.loss(), other.optimizer()).backward();
         run.step();
       },
       error(not_given)},
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

class WrongUseOfScaleLossTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseOfScaleLossTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(ScaleLoss, WrongUseOfScaleLossTest, ::testing::ValuesIn(of_scale_loss()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Several, WrongUseOfScaleLossTest, ::testing::ValuesIn(of_several()),
                         name_of);

}  // namespace
}  // namespace torchamp::wrong_use

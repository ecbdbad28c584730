// Wrong uses of initialize, and of the models and handles that it returns, that C++ alone has.
#include <torch/nn/modules/container/sequential.h>
#include <torchamp/clip.h>
#include <torchamp/inference.h>
#include <torchamp/serialize.h>
#include <torchamp/telemetry.h>

#include <memory>

#include "checkpoints.h"
#include "wrong_use_training.h"

namespace torchamp::wrong_use {
namespace {

Outcome initialized_already(const std::string& param, const std::string& dtype) {
  return error("^initialize: expected a model that is not initialized already, got parameter \"" +
               param + "\" in " + dtype +
               " of an earlier initialize; pass all models and optimizers that belong together to "
               "one call, or end the earlier training by torchamp::release\\. Where its Amp is "
               "gone, to\\(torch::kFloat\\) makes the model float32$");
}

std::vector<WrongUse> of_initialize() {
  return {
      {"a_float16_buffer",
       [] {
         Net net;
         net->norm->running_mean.set_data(net->norm->running_mean.to(at::kHalf));
         (void)initialize(net, "O2");
       },
       right()},
      {"the_model_again",
       [] {
         Run run;
         SGD sgd(run.net->parameters(), 0.1);
         (void)initialize(run.net, sgd, "O2");
       },
       initialized_already("weight", "Half")},
      {"the_model_again_without_its_masters",
       [] {
         Net net;
         {
           SGD sgd(net->parameters(), 0.1);
           (void)initialize(net, sgd, "O5");
         }
         SGD sgd(net->parameters(), 0.1);
         (void)initialize(net, sgd, "O5");
       },
       initialized_already("first.weight", "BFloat16")},
      {"the_model_again_in_float32_without_its_masters",
       [] {
         Net net;
         {
           SGD sgd(net->parameters(), 0.1);
           (void)initialize(net, sgd, "O5");
         }
         net->to(at::kFloat);
         SGD sgd(net->parameters(), 0.1);
         (void)initialize(net, sgd, "O5");
       },
       right()},
      {"a_null_model", [] { (void)initialize(std::shared_ptr<torch::nn::LinearImpl>(), "O2"); },
       error<c10::ValueError>(
           R"(^initialize: expected modules, got a null pointer as models\[0\]$)")},
      {"an_empty_holder", [] { (void)initialize(Linear(nullptr), "O2"); },
       error("Accessing empty ModuleHolder")},
      {"a_null_optimizer",
       [] { (void)initialize(Linear(4, 2), std::shared_ptr<torch::optim::Optimizer>(), "O2"); },
       error<c10::ValueError>("^initialize: expected an optimizer, got a null pointer$")},
      {"an_optimizer_twice",
       [] {
         Linear net(4, 2);
         SGD sgd(net->parameters(), 0.1);
         (void)initialize(std::make_tuple(net), {sgd, sgd}, "O2");
       },
       error<c10::ValueError>(
           R"(^initialize: expected each optimizer once, got optimizers\[0\] a)")},
      {"a_parameter_twice",
       [] {
         Linear net(4, 2);
         SGD sgd({net->weight, net->bias, net->weight}, 0.1);
         try {
           (void)initialize(net, sgd, "O2");
         } catch (const c10::ValueError&) {
           EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
           throw;
         }
       },
       error<c10::ValueError>("^initialize: expected each parameter of optimizers\\[0\\] once, got "
                              "one of sizes \\[2, 4\\] twice$")},
      {"the_optimizer_of_another_initialize",
       [] {
         Run run;
         (void)initialize(Linear(4, 2), run.optimizer_given, "O2");
       },
       error<c10::ValueError>("^initialize: expected a parameter that no other optimizer steps")},
      {"a_model_twice",
       [] {
         Linear net(4, 2);
         SGD sgd(net->parameters(), 0.1);
         auto amped = initialize(std::make_tuple(net, net), sgd, at_level("O2"));
         const Tensor output = std::get<0>(amped.models)(at::ones({2, 4}));
         scale_loss(output.square().mean(), amped.optimizers).backward();
         EXPECT_TRUE(amped.optimizers[0].step());
       },
       right()},
      {"optimizers_on_two_devices",
       [] {
         Linear net(4, 2);
         const Tensor other = at::empty({2}, at::kMeta).set_requires_grad(true);
         SGD sgd(net->parameters(), 0.1), elsewhere({other}, 0.1);
         (void)initialize(std::make_tuple(net), {sgd, elsewhere}, quiet(OptLevel::O2));
       },
       error(
           "^initialize: expected the parameters of all optimizers to be on one device, cpu, got")},
  };
}

std::vector<WrongUse> of_changed_models() {
  const auto retyped =
      "^amp: expected a model parameter of sizes .* to hold Half as initialize left it, got ";
  return {
      {"to_float32",
       [] {
         Run run;
         run.net->to(at::kFloat);
         run.loss();
       },
       error(std::string(retyped) + "Float")},
      {"to_float16_at_O5_before_the_step",
       [] {
         Run run(at_level("O5"));
         run.backward();
         run.net->to(at::kHalf);
         run.step();
       },
       error("^amp: expected a model parameter of sizes .* to hold BFloat16 as initialize left it, "
             "got Half")},
      {"to_another_device",
       [] {
         Run run;
         run.net->to(at::kMeta);
       },
       error("incompatible tensor type")},
      {"cast_for_inference_kReleased",
       [] {
         Run run;
         cast_for_inference(run.net, at::kBFloat16);
         run.loss();
       },
       error(std::string(retyped) + "BFloat16")},
      {"cast_for_inference_with_integer_outputs",
       [] { cast_for_inference(Linear(4, 2), at::kHalf, true, at::kLong); },
       error<c10::TypeError>("expected cast_model_outputs to be .*floating.*, got Long$")},
      {"cast_for_inference_of_a_null_model",
       [] { cast_for_inference(std::shared_ptr<torch::nn::LinearImpl>(), at::kHalf); },
       error<c10::ValueError>("^cast_for_inference: expected a module, got a null pointer$")},
      {"an_integer_input",
       [] {
         Run().amped.model(at::ones({2, 4}, at::kLong));
       },
       error("must have the same dtype, but got Long and Half")},
      {"an_undefined_input", [] { Run().amped.model(Tensor()); },
       error("got None \\(or an undefined Tensor in C\\+\\+\\)")},
      {"an_empty_sequential",
       [] {
         initialize(torch::nn::Sequential(), "O2").forward(at::ones({2, 4}));
       },
       error("Cannot call forward\\(\\) on an empty Sequential")},
      {"release_of_a_model_for_inference",
       [] { release(cast_for_inference(Linear(4, 2), at::kHalf)); },
       error(
           "^release: expected a model that initialize returned, got one of cast_for_inference$")},
      {"the_scaler_of_no_loss", [] { Run().amp().loss_scaler(1); },
       error<c10::IndexError>("expected loss_id to be below num_losses, 1, got 1$")},
  };
}

const char* const kReleased =
    "^amp: expected a model and optimizers in training, got those of an initialize that was rele";

/// What a program does with the handles of an initialize that was released.
WrongUse released(const std::string& name, const std::function<void(Run<>&)>& program) {
  return {name,
          [program] {
            Run run;
            release(run.amped);
            program(run);
          },
          error(kReleased)};
}

std::vector<WrongUse> of_released() {
  return {
      released("forward", [](Run<>& run) { run.loss(); }),
      released("scale", [](Run<>& run) { scale_loss(at::ones({}), run.optimizer()).backward(); }),
      released("step", [](Run<>& run) { run.step(); }),
      released("step_by_a_closure",
               [](Run<>& run) { run.optimizer().step([] { return at::ones({}); }); }),
      released("zero_grad", [](Run<>& run) { run.optimizer().zero_grad(); }),
      released("add_param_group",
               [](Run<>& run) { run.optimizer().add_param_group({{at::ones({2})}}); }),
      released("param_groups", [](Run<>& run) { run.optimizer().param_groups(); }),
      released("masters", [](Run<>& run) { master_params(run.optimizer()); }),
      released("refresh", [](Run<>& run) { refresh_masters(run.optimizer()); }),
      released("clip", [](Run<>& run) { clip_grad_norm_(run.optimizer(), 1); }),
      released("clip_values", [](Run<>& run) { clip_grad_value_(run.optimizer(), 1); }),
      released("report", [](Run<>& run) { telemetry(run.optimizer()); }),
      released("write", [](Run<>& run) { save(run.amped, File().path()); }),
      {"read",
       [] {
         const File file;
         Run run;
         save(run.amped, file.path());
         release(run.amped);
         load(run.amped, file.path());
       },
       error(kReleased)},
      {"release_again",
       [] {
         Run run;
         release(run.amped);
         release(run.amped);
         EXPECT_EQ(run.net->weight.scalar_type(), at::kFloat);
       },
       right()},
  };
}

class WrongUseTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUseTest, GetsItsOutcome) {
  check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Initialize, WrongUseTest, ::testing::ValuesIn(of_initialize()), name_of);
INSTANTIATE_TEST_SUITE_P(ChangedModels, WrongUseTest, ::testing::ValuesIn(of_changed_models()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Released, WrongUseTest, ::testing::ValuesIn(of_released()), name_of);

}  // namespace
}  // namespace torchamp::wrong_use

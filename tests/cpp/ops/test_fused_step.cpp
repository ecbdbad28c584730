// fused_step against the oracle: every algorithm with every option, on lists of mixed dtypes.
#include "device.h"
#include "step_case.h"

namespace torchamp {
namespace {

using oracle::StepOptions;

const StepAlgorithm kAlgorithms[] = {StepAlgorithm::kAdam,       StepAlgorithm::kSgd,
                                     StepAlgorithm::kMomentum,   StepAlgorithm::kNovoGrad,
                                     StepAlgorithm::kLambUpdate, StepAlgorithm::kLambApply};

/// Groups that use each option of an algorithm alone or with weight decay.
std::vector<StepOptions> adam_groups() {
  std::vector<StepOptions> groups(6);
  groups[1].weight_decay = 0.3;
  groups[2].weight_decay = 0.3;
  groups[2].decoupled = true;
  groups[3].weight_decay = 0.3;
  groups[3].maximize = true;
  groups[4].bias_correction = false;
  groups[5].beta1 = 0;
  groups[5].eps = 0.1;
  return groups;
}

std::vector<StepOptions> sgd_groups() {
  std::vector<StepOptions> groups(6);
  for (size_t i = 1; i < groups.size(); ++i) {
    groups[i].momentum = 0.9;
    groups[i].weight_decay = i > 2 ? 0.3 : 0.0;
  }
  groups[2].dampening = 0.4;
  groups[3].nesterov = true;
  groups[4].maximize = true;
  groups[5].decay_after_momentum = true;
  return groups;
}

std::vector<StepOptions> novo_grad_groups() {
  std::vector<StepOptions> groups(7);
  for (size_t i = 1; i < groups.size(); ++i) groups[i].weight_decay = 0.3;
  for (auto& options : groups) options.eps = 0.1;
  groups[2].decay_in_moment = true;
  groups[3].bias_correction = false;
  groups[4].averages_grads = false;
  groups[5].starts_at_zero = true;
  groups[6].maximize = true;
  groups[6].decay_in_moment = true;
  groups[6].averages_grads = false;
  return groups;
}

std::vector<StepOptions> lamb_groups() {
  std::vector<StepOptions> groups = adam_groups();
  groups.resize(8);
  groups[6].averages_grads = false;
  groups[7].always_adapts = true;
  return groups;
}

std::vector<StepOptions> groups_of(StepAlgorithm algorithm) {
  switch (algorithm) {
    case StepAlgorithm::kAdam:
      return adam_groups();
    case StepAlgorithm::kSgd:
    case StepAlgorithm::kMomentum:
      return sgd_groups();
    case StepAlgorithm::kNovoGrad:
      return novo_grad_groups();
    default:
      return lamb_groups();
  }
}

class FusedStepTest : public ::testing::TestWithParam<std::tuple<at::Device, StepAlgorithm>> {
 protected:
  static at::Device device() { return std::get<0>(GetParam()); }
  static StepAlgorithm algorithm() { return std::get<1>(GetParam()); }
  static StepCase make() {
    return make_case(algorithm(), groups_of(algorithm()), step_lists(algorithm(), 400, device()),
                     device());
  }
};

TEST_P(FusedStepTest, MatchesTheOracleStepAfterStep) {
  const StepCase call = make();
  for (unsigned batch = 0; batch < 3; ++batch) {
    renew_grads(call, 40 + batch);
    const StepCase before = copy_of(call);
    run(call);
    expect_stepped(before, call);
  }
}

TEST_P(FusedStepTest, MultipliesGradsWithTheFactor) {
  StepCase call = make();
  call.scalars.grad_factor = scalar_of(0.3f, at::kFloat, device());
  call.scalars.skip = scalar_of(0, at::kFloat, device());
  const StepCase before = copy_of(call);
  run(call);
  expect_stepped(before, call);
}

TEST_P(FusedStepTest, SkipsAsIfItHadNotBeenCalled) {
  StepCase call = make();
  for (const auto& grad : call.grads()) {
    if (grad.defined()) grad.fill_(INFINITY);
  }
  call.scalars.skip = scalar_of(1, at::kFloat, device());
  const StepCase before = copy_of(call);
  run(call);
  expect_untouched(before, call);
}

TEST_P(FusedStepTest, ReadsHyperparametersOnTheDevice) {
  StepCase call = make();
  call.scalars.hyper = call.scalars.hyper.to(device());
  const StepCase before = copy_of(call);
  run(call);
  expect_stepped(before, call);
}

TEST_P(FusedStepTest, TakesLearningRatesThatAreTensors) {
  StepCase call = make();
  std::vector<at::Tensor> lrs(call.groups.size());
  for (size_t g = 1; g < lrs.size(); ++g) {
    call.groups[g].lr = 0.25 / static_cast<double>(g);
    const auto dtype = g % 2 == 0 ? at::kDouble : at::kFloat;
    lrs[g] = scalar_of(call.groups[g].lr, dtype, device());
    call.groups[g].lr = lrs[g].item<double>();
  }
  call.scalars.lrs = lrs;
  const StepCase before = copy_of(call);
  run(call);
  expect_stepped(before, call);
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<at::Device, StepAlgorithm>>& info) {
  constexpr const char* kNames[] = {"adam",      "sgd",         "momentum",
                                    "novo_grad", "lamb_update", "lamb_apply"};
  const auto [device, algorithm] = info.param;
  return (device.is_cuda() ? "cuda_" : "cpu_") + std::string(kNames[static_cast<int>(algorithm)]);
}

INSTANTIATE_TEST_SUITE_P(On, FusedStepTest,
                         ::testing::Combine(::testing::ValuesIn(devices()),
                                            ::testing::ValuesIn(kAlgorithms)),
                         name_of);

}  // namespace
}  // namespace torchamp

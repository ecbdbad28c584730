// The optimizers' step, from plan to kernel.
#include "step.h"

namespace kernel_tests {
namespace {

using Rules = testing::Types<torchamp::Adam, torchamp::Sgd, torchamp::Momentum, torchamp::NovoGrad,
                             torchamp::LambUpdate, torchamp::LambApply>;

struct RuleNames {
  template <class Rule>
  static std::string GetName(int) {
#define TORCHAMP_STRING(Name, name) #Name,
    const char* const names[] = {TORCHAMP_ALGORITHMS(TORCHAMP_STRING)};
#undef TORCHAMP_STRING
    return names[static_cast<int>(kAlgorithm<Rule>)];
  }
};

TYPED_TEST_SUITE(Step, Rules, RuleNames);

TYPED_TEST(Step, FollowsTheRuleBitForBit) {
  for (const bool tiny : {false, true}) {
    for (const bool compact : {false, true}) {
      for (const bool stochastic_rounding : {false, true}) {
        auto lists = this->make(tiny, compact);
        if (stochastic_rounding) spoil(lists[0]);
        Scalars scalars(lists[0].size());
        scalars.stochastic_rounding = stochastic_rounding;
        scalars.stride = stochastic_rounding ? 1 : 2;
        this->expect_step(lists, /*models=*/true, scalars);
        const bool is_compact = stochastic_rounding || (compact && TypeParam::kStates > 0);
        const bool took_compact = last_launched().find("_compact") != std::string::npos;
        EXPECT_EQ(took_compact, is_compact) << last_launched();
      }
    }
  }
}

/// Each kind of table has kernels of its own. Also without factors and model parameters, with
/// hyperparameters on the device, and with consecutive positions.
TYPED_TEST(Step, FollowsTheRuleFromEveryTable) {
  for (const auto& [is_plain, is_compact] :
       {std::pair(true, false), {false, false}, {true, true}, {false, TypeParam::kStates > 0}}) {
    const std::string kernel = is_compact ? "_compact" : "";
    auto lists = this->make(/*tiny=*/true, is_compact);
    auto mixed = this->make(/*tiny=*/false, is_compact);
    if (is_compact) spoil(mixed[0]);
    Scalars scalars(lists[0].size() + mixed[0].size());
    scalars.has_factor = is_plain;
    scalars.stochastic_rounding = is_compact && is_plain;
    if (!is_plain) scalars.rows = rows_on_device();
    scalars.stride = is_plain ? 2 : 1;
    auto all_mixed = this->make(/*tiny=*/false, is_compact);
    this->expect_step(all_mixed, /*models=*/is_plain, scalars);
    while (!mixed[0].empty()) {
      auto few = take(mixed, 18);
      this->expect_step(few, /*models=*/is_plain, scalars);
      EXPECT_NE(last_launched().find(kernel + "_small"), std::string::npos) << last_launched();
      append(lists, std::move(few));
    }
    Tables tables;
    this->expect_step(lists, /*models=*/is_plain, scalars, {0, nullptr, &tables});
    EXPECT_NE(last_launched().find(kernel + "_resident"), std::string::npos) << last_launched();
  }
}

TYPED_TEST(Step, NeedsNeitherModelParamsNorFactorsNorRowsOnTheHost) {
  auto lists = this->make(/*tiny=*/false);
  Scalars scalars(lists[0].size());
  scalars.has_factor = false;
  scalars.stochastic_rounding = true;
  scalars.rows = rows_on_device();
  this->expect_step(lists, /*models=*/false, scalars);
}

TYPED_TEST(Step, SkipsWithoutATrace) {
  auto lists = this->make(/*tiny=*/false);
  const auto before = this->copies(lists);
  Scalars scalars(lists[0].size());
  scalars.skip = 1.0f;
  const Scalars scalars_before = scalars;
  uint32 ticket = 0;
  cuda::step(kQueue, kAlgorithm<TypeParam>, this->plan_for(lists, true), scalars.inputs(), kHyper,
             &ticket);
  EXPECT_EQ(ticket, 0u);
  for (std::size_t list = 0; list < lists.size(); ++list) expect_same(lists[list], before[list]);
  EXPECT_EQ(scalars.steps, scalars_before.steps);
  EXPECT_EQ(scalars.norm_averages, scalars_before.norm_averages);
}

using SgdStep = Step<torchamp::Sgd>;

TEST_F(SgdStep, TakesALaunchForAsManyTensorsAsFitATable) {
  constexpr int kFit = cuda::Launch<cuda::StepArguments<torchamp::Sgd>>::kCapacity;
  constexpr int kRows = 2 * sizeof(torchamp::HyperRow) / sizeof(torchamp::cuda::Entry<3>) + 1;
  for (const int tensors : {kFit - kRows, kFit + 129}) {
    std::vector<TensorList> lists(3);
    for (int t = 0; t < tensors; ++t) {
      for (TensorList& list : lists) list.emplace_back(DType::kFloat32, 1);
    }
    for (TensorList& list : lists) randomise(list, 31);
    Scalars scalars(lists[0].size());
    const int before = launches();
    expect_step(lists, /*models=*/true, scalars);
    EXPECT_EQ(launches() - before, tensors < kFit ? 1 : 2);
  }
}

}  // namespace
}  // namespace kernel_tests

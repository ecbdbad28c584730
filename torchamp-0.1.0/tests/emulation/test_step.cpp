// The optimizers' step, from plan to kernel.
#include "step.h"

namespace emulation {
namespace {

using Rules = testing::Types<torchamp::Adam, torchamp::AmsGrad, torchamp::Sgd, torchamp::Momentum,
                             torchamp::Adagrad, torchamp::NovoGrad, torchamp::LambUpdate,
                             torchamp::LambApply>;

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
      auto lists = this->make(tiny, compact);
      Scalars scalars(lists[0].size());
      this->expect_step(lists, /*models=*/true, scalars);
      const bool is_compact = compact && TypeParam::kStates > 0;
      const bool took_compact = last_launched().find("_compact") != std::string::npos;
      EXPECT_EQ(took_compact, is_compact) << last_launched();
    }
  }
}

TYPED_TEST(Step, NeedsNeitherModelParamsNorFactors) {
  auto lists = this->make(/*tiny=*/false);
  Scalars scalars(lists[0].size());
  scalars.has_factor = false;
  scalars.stochastic_rounding = true;
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
}  // namespace emulation

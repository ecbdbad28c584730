// The norms and the step of the loss scale, from plan to kernel.
#include "cases.h"
#include "checks.h"
#include "cuda/arguments.h"
#include "driver.h"
#include "queues.h"

namespace kernel_tests {
namespace {

namespace cuda = torchamp::cuda;

constexpr int kManyTensors = 19600;

double sum_of_squares(const Tensor& tensor) {
  double sum = 0.0;
  for (int64 i = 0; i < tensor.count(); ++i) sum += double{tensor[i]} * double{tensor[i]};
  return sum;
}

struct Norms {
  explicit Norms(std::size_t tensors) : each(2 * tensors, -1.0f) {}

  float all = -1.0f;
  std::vector<float> each;
};

Norms norms_of(const TensorList& list, Report& report, const cuda::Queue& queue = kQueue) {
  const Plan plan = plan_of({&list});
  Norms norms(list.size());
  std::vector<char> workspace(cuda::l2norm_workspace(plan));
  cuda::l2norm(queue, plan, &norms.all, norms.each.data(), report.flags(), nullptr,
               workspace.data());
  return norms;
}

class L2norm : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    cuda::use_driver(driver());
    list_ = std::move(GetParam() ? tiny_cases(1)[0] : all_cases(1)[0]);
    list_.emplace_back(DType::kFloat16, 70001, 1);
    for (int64 i = 0; i < 70001; ++i) list_.back().set(i, 0.001f * static_cast<float>(i % 97));
  }

  TensorList list_;
};

void expect_norms(const TensorList& list, const cuda::Queue& queue = kQueue) {
  Report report(list.size());
  const Norms norms = norms_of(list, report, queue);
  double total = 0.0;
  for (std::size_t t = 0; t < list.size(); ++t) {
    const double sum = sum_of_squares(list[t]);
    EXPECT_NEAR(norms.each[2 * t], std::sqrt(sum), 1e-5 * std::sqrt(sum)) << "tensor " << t;
    EXPECT_EQ(norms.each[2 * t + 1], -1.0f) << "written at a position that the plan leaves out";
    total += sum;
  }
  EXPECT_NEAR(norms.all, std::sqrt(total), 1e-5 * std::sqrt(total));
  EXPECT_EQ(report.found_inf, 0.0f);
}

/// Each kind of table has kernels of its own.
TEST_P(L2norm, IsTheNormOfAllAndOfEach) {
  expect_norms(list_);
  std::vector<TensorList> lists(1);
  lists[0] = std::move(list_);
  append(lists, tiny_cases(1));
  Tables tables;
  const int before = launches();
  expect_norms(lists[0], {0, nullptr, &tables});
  EXPECT_EQ(launches() - before, 3) << "the sums of units, of tensors, and of all";
  EXPECT_EQ(tables.puts, 2);
  while (!lists[0].empty()) expect_norms(take(lists, 100)[0]);
}

TEST_P(L2norm, ReportsWhatIsNotFinite) {
  spoil(list_);
  Report report(list_.size());
  const Norms norms = norms_of(list_, report);
  EXPECT_FALSE(std::isfinite(norms.all));
  for (std::size_t t = 0; t < list_.size(); ++t) {
    EXPECT_EQ(report.per_tensor[2 * t], std::isfinite(norms.each[2 * t]) ? 0 : 1) << "tensor " << t;
  }
  EXPECT_EQ(report.found_inf, 1.0f);
}

INSTANTIATE_TEST_SUITE_P(Lists, L2norm, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Tiny" : "Mixed");
});

TEST(L2normOfManyUnits, HasEach) {
  cuda::use_driver(driver());
  constexpr int kTensors = 2000;
  TensorList list;
  for (int t = 0; t < kTensors; ++t) {
    list.emplace_back(DType::kFloat32, 1);
    list.back().set(0, 3.0f);
  }
  Report report(kTensors);
  EXPECT_EQ(norms_of(list, report).all, 3.0f * std::sqrt(static_cast<float>(kTensors)));
}

TEST(L2normThatIsSkipped, ReadsNothing) {
  cuda::use_driver(driver());
  TensorList list;
  list.emplace_back(DType::kFloat32, 1);
  list[0].set(0, kInfinity);
  const Plan plan = plan_of({&list});
  std::vector<char> workspace(cuda::l2norm_workspace(plan));
  for (const float skip : {1.0f, 0.0f}) {
    float norm = -1.0f;
    cuda::l2norm(kQueue, plan, &norm, nullptr, {}, &skip, workspace.data());
    EXPECT_EQ(norm, skip == 0.0f ? kInfinity : 0.0f);
  }
}

TEST(L2normOfLargeValues, OverflowsWithoutReportingIt) {
  cuda::use_driver(driver());
  TensorList list;
  list.emplace_back(DType::kBFloat16, 4);
  for (int64 i = 0; i < 4; ++i) list[0].set(i, 1e30f);
  Report report(1);
  EXPECT_EQ(norms_of(list, report).all, kInfinity);
  EXPECT_EQ(report.found_inf, 0.0f);
}

TEST(L2normPerTensor, MayBeLeftOut) {
  cuda::use_driver(driver());
  TensorList list;
  list.emplace_back(DType::kFloat32, 1);
  list[0].set(0, -3.0f);
  const Plan plan = plan_of({&list});
  std::vector<char> workspace(cuda::l2norm_workspace(plan));
  float norm = 0.0f;
  cuda::l2norm(kQueue, plan, &norm, nullptr, {}, nullptr, workspace.data());
  EXPECT_EQ(norm, 3.0f);
}

TEST(Clip, ShrinksFactorsByTheNormOfAllParts) {
  cuda::use_driver(driver());
  const float norms[] = {24.0f, 4.0f}, factor = 0.125f;
  for (const float max_norm : {1.0f, 100.0f}) {
    float norm = -1, coefficient = -1, clipped[] = {-1, -1};
    torchamp::Clipping clipping{max_norm, &norm, &coefficient, 2, {}};
    clipping.parts[0] = {&norms[0], &factor, &clipped[0]};
    clipping.parts[1] = {&norms[1], nullptr, &clipped[1]};
    cuda::clip(kQueue, clipping);
    EXPECT_EQ(norm, 5.0f);
    EXPECT_EQ(coefficient, max_norm > 5 ? 1.0f : 1.0f / (5.0f + 1e-6f));
    EXPECT_EQ(clipped[0], factor * coefficient);
    EXPECT_EQ(clipped[1], coefficient);
  }
}

TEST(Clip, TakesAnyNumberOfParts) {
  cuda::use_driver(driver());
  for (const int parts : {1, 3, 4, 11, torchamp::kClipParts}) {
    std::vector<float> norms(parts, 3.0f), clipped(parts, -1.0f);
    float norm = -1, coefficient = -1;
    const float factor = 0.5f;
    auto clipping = std::make_unique<torchamp::Clipping>();
    *clipping = {1.0f, &norm, &coefficient, parts, {}};
    double squares = 0.0;
    for (int i = 0; i < parts; ++i) {
      clipping->parts[i] = {&norms[i], i % 2 == 0 ? nullptr : &factor,
                            i % 3 == 0 ? nullptr : &clipped[i]};
      squares += i % 2 == 0 ? 9.0 : 2.25;
    }
    cuda::clip(kQueue, *clipping);
    EXPECT_EQ(norm, static_cast<float>(std::sqrt(squares)));
    for (int i = 0; i < parts; ++i) {
      const float expected = i % 2 == 0 ? coefficient : factor * coefficient;
      EXPECT_EQ(clipped[i], i % 3 == 0 ? -1.0f : expected) << "part " << i << " of " << parts;
    }
  }
}

TEST(Clip, LeavesNothingOfInfiniteNorms) {
  cuda::use_driver(driver());
  float norm = -1, coefficient = -1;
  torchamp::Clipping clipping{1.0f, &norm, &coefficient, 1, {}};
  clipping.parts[0] = {&kInfinity, nullptr, nullptr};
  cuda::clip(kQueue, clipping);
  EXPECT_EQ(norm, kInfinity);
  EXPECT_EQ(coefficient, 0.0f);
}

TEST(L2normOfManyTensors, AddsSeveralSumsPerThread) {
  cuda::use_driver(driver());
  TensorList list;
  for (int t = 0; t < kManyTensors; ++t) list.emplace_back(DType::kFloat32, 1);
  for (Tensor& tensor : list) tensor.set(0, 2.0f);
  Report report(list.size());
  EXPECT_EQ(norms_of(list, report).all, 2.0f * std::sqrt(static_cast<float>(kManyTensors)));
}

TEST(L2normOfALargeTensor, AddsTheSumsOfItsUnits) {
  cuda::use_driver(driver());
  TensorList list;
  list.emplace_back(DType::kFloat32, 40 * cuda::kBlockUnit + 1);
  list[0].set(3, 3.0f);
  list[0].set(40 * cuda::kBlockUnit, 4.0f);
  Report report(1);
  const Norms norms = norms_of(list, report);
  EXPECT_EQ(norms.all, 5.0f);
  EXPECT_EQ(norms.each[0], 5.0f);
}

TEST(UpdateScale, FollowsTheRule) {
  cuda::use_driver(driver());
  const torchamp::ScaleUpdate::Rule rule{2.0f, 0.5f, 3, 1.0f, 64.0f};
  torchamp::ScaleUpdate::State expected{16.0f, 0};
  torchamp::ScaleUpdate::State state = expected;
  const float found_infs[] = {0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (const float found_inf : found_infs) {
    expected = torchamp::updated(expected, found_inf != 0.0f, rule);
    cuda::update_scale(kQueue, {&state.loss_scale, &state.growth_tracker, rule}, &found_inf);
    EXPECT_EQ(state.loss_scale, expected.loss_scale);
    EXPECT_EQ(state.growth_tracker, expected.growth_tracker);
  }
}

}  // namespace
}  // namespace kernel_tests

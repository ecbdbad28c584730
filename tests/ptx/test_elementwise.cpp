// The elementwise ops, from plan to kernel, compared with plain loops over the same arithmetic.
#include "cases.h"
#include "checks.h"
#include "cuda/arguments.h"
#include "cuda/launch_table.h"
#include "driver.h"
#include "math/axpby.h"
#include "math/unscale.h"
#include "queues.h"

namespace kernel_tests {
namespace {

using torchamp::Checked;
namespace cuda = torchamp::cuda;

/// Lists for every op in four forms: all cases and tiny ones, each clean and with non-finite
/// values.
class Elementwise : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  void SetUp() override { cuda::use_driver(driver()); }

  std::vector<TensorList> make(int lists) const {
    const auto [tiny, spoiled] = GetParam();
    auto cases = tiny ? tiny_cases(lists) : all_cases(lists);
    if (spoiled) spoil(cases[0]);
    return cases;
  }
};

Report expected_unscale(const TensorList& grads, TensorList& masters, float inv_scale,
                        bool accumulate) {
  Report report(grads.size());
  for (std::size_t t = 0; t < grads.size(); ++t) {
    for (int64 i = 0; i < grads[t].count(); ++i) {
      const float grad = grads[t][i];
      const float master = accumulate ? torchamp::unscaled_onto(grad, inv_scale, masters[t][i])
                                      : torchamp::unscaled(grad, inv_scale);
      const bool overflow = store(masters[t], i, master);
      if (overflow || torchamp::is_nonfinite(grad)) raise(report, t);
    }
  }
  return report;
}

void expect_unscale(std::vector<TensorList> lists, bool accumulate,
                    const cuda::Queue& queue = kQueue) {
  const float inv_scale = 1.0f / 3.0f;
  auto expected = copy_of(lists[1]);
  const Report expected_report = expected_unscale(lists[0], expected, inv_scale, accumulate);
  Report report(lists[0].size());
  const Plan plan = plan_of({&lists[0], &lists[1]});
  cuda::unscale(queue, plan, {&inv_scale, /*is_loss_scale=*/false}, accumulate, report.flags());
  expect_same(lists[1], expected);
  expect_same(report, expected_report);
}

TEST_P(Elementwise, Unscale) {
  for (const bool accumulate : {false, true}) {
    expect_unscale(make(2), accumulate);
    auto lists = make(2);
    spoil(lists[0]);
    while (!lists[0].empty()) expect_unscale(take(lists, 100), accumulate);
    lists = make(2);
    append(lists, tiny_cases(2));
    spoil(lists[0]);
    Tables tables;
    expect_unscale(std::move(lists), accumulate, {0, nullptr, &tables});
  }
}

TEST_P(Elementwise, UnscaleInPlace) {
  auto lists = make(1);
  const float factor = 0.3f;
  auto expected = copy_of(lists[0]);
  const Report expected_report = expected_unscale(expected, expected, factor, false);
  Report report(lists[0].size());
  cuda::unscale(kQueue, plan_of({&lists[0], &lists[0]}), {&factor, false}, false, report.flags());
  expect_same(lists[0], expected);
  expect_same(report, expected_report);
}

bool checks(Checked checked, Checked list) {
  return (static_cast<int>(checked) & static_cast<int>(list)) != 0;
}

Report expected_axpby(const std::vector<TensorList>& lists, TensorList& out, Checked checked) {
  Report report(out.size());
  for (std::size_t t = 0; t < out.size(); ++t) {
    for (int64 i = 0; i < out[t].count(); ++i) {
      const float x = lists[0][t][i], y = lists[1][t][i];
      bool found = store(out[t], i, torchamp::axpby(0.7f, x, -1.3f, y));
      found |= checks(checked, Checked::kX) && torchamp::is_nonfinite(x);
      found |= checks(checked, Checked::kY) && torchamp::is_nonfinite(y);
      if (found) raise(report, t);
    }
  }
  return report;
}

TEST_P(Elementwise, Axpby) {
  for (const Checked checked : {Checked::kX, Checked::kY, Checked::kBoth}) {
    auto lists = make(3);
    auto expected = copy_of(lists[2]);
    const Report expected_report = expected_axpby(lists, expected, checked);
    Report report(expected.size());
    const Plan plan = plan_of({&lists[0], &lists[1], &lists[2]});
    cuda::axpby(kQueue, plan, 0.7f, -1.3f, checked, report.flags());
    expect_same(lists[2], expected);
    expect_same(report, expected_report);
  }
}

TEST_P(Elementwise, Check) {
  auto lists = make(1);
  Report expected(lists[0].size());
  for (std::size_t t = 0; t < lists[0].size(); ++t) {
    for (int64 i = 0; i < lists[0][t].count(); ++i) {
      if (torchamp::is_nonfinite(lists[0][t][i])) raise(expected, t);
    }
  }
  Report report(lists[0].size());
  cuda::check(kQueue, plan_of({&lists[0]}), report.flags());
  expect_same(report, expected);
}

bool expected_found(const TensorList& list) {
  for (const Tensor& tensor : list) {
    for (int64 i = 0; i < tensor.count(); ++i) {
      if (torchamp::is_nonfinite(tensor[i])) return true;
    }
  }
  return false;
}

/// Each kind of table has kernels of its own.
TEST_P(Elementwise, CheckFromEveryTable) {
  auto lists = make(1);
  append(lists, tiny_cases(1));
  Tables tables;
  Report all(lists[0].size());
  cuda::check({0, nullptr, &tables}, plan_of({&lists[0]}), all.flags());
  EXPECT_EQ(all.found_inf, expected_found(lists[0]));
  EXPECT_EQ(last_launched(), "torchamp_check_resident");
  while (!lists[0].empty()) {
    const auto few = take(lists, 40);
    Report report(few[0].size());
    cuda::check(kQueue, plan_of({&few[0]}), report.flags());
    EXPECT_EQ(report.found_inf, expected_found(few[0]));
    EXPECT_EQ(last_launched(), "torchamp_check_small");
  }
}

TEST_P(Elementwise, CopyCast) {
  auto lists = make(2);
  auto expected = copy_of(lists[1]);
  for (std::size_t t = 0; t < expected.size(); ++t) {
    for (int64 i = 0; i < expected[t].count(); ++i) expected[t].set(i, lists[0][t][i]);
  }
  cuda::copy_cast(kQueue, plan_of({&lists[0], &lists[1]}));
  expect_same(lists[1], expected);
}

std::string form_of(const testing::TestParamInfo<std::tuple<bool, bool>>& info) {
  const auto [tiny, spoiled] = info.param;
  return std::string(tiny ? "Tiny" : "Mixed") + (spoiled ? "Spoiled" : "Clean");
}

INSTANTIATE_TEST_SUITE_P(Lists, Elementwise, testing::Combine(testing::Bool(), testing::Bool()),
                         form_of);

TEST(Flags, MayBeAbsent) {
  cuda::use_driver(driver());
  TensorList list;
  list.emplace_back(DType::kFloat32, 3);
  list[0].set(1, kInfinity);
  Report report(1);
  cuda::check(kQueue, plan_of({&list}), {&report.found_inf, nullptr});
  cuda::check(kQueue, plan_of({&list}), {nullptr, nullptr});
  EXPECT_EQ(report.found_inf, 1.0f);
}

TEST(Launches, AnEmptyPlanTakesNone) {
  cuda::use_driver(driver());
  const int before = launches();
  cuda::check(kQueue, Plan{}, {});
  EXPECT_EQ(launches(), before);
}

TEST(Launches, OneServesAThousandTensorsOfTwoLists) {
  cuda::use_driver(driver());
  TensorList list;
  for (int t = 0; t < 1000; ++t) list.emplace_back(DType::kFloat16, 1);
  const int before = launches();
  cuda::copy_cast(kQueue, plan_of({&list, &list}));
  EXPECT_EQ(launches(), before + 1);
}

}  // namespace
}  // namespace kernel_tests

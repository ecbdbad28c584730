#include <gtest/gtest.h>

#include "cuda/arguments.h"
#include "cuda/tables.h"

namespace torchamp::cuda {
namespace {

static_assert(sizeof(Launch<UnscaleArguments>) <= kParameterBytes, "CUDA would refuse it");
static_assert(sizeof(Launch<AxpbyArguments>) <= kParameterBytes, "CUDA would refuse it");
static_assert(sizeof(Launch<CheckArguments>) <= kParameterBytes, "CUDA would refuse it");
static_assert(sizeof(Launch<CopyCastArguments>) <= kParameterBytes, "CUDA would refuse it");
static_assert(sizeof(Launch<L2normArguments>) <= kParameterBytes, "CUDA would refuse it");
static_assert(sizeof(Launch<StepArguments<Adam>>) <= kParameterBytes, "CUDA would refuse it");
static_assert(sizeof(SmallLaunch<StepArguments<Adam>>) <= kSmallParameterBytes, "it is small");
static_assert(sizeof(Launch<AxpbyArguments>) % 8 == 0, "nothing may stand after it");

template <class Arguments>
Launch<Arguments> empty_launch() {
  Launch<Arguments> launch;
  begin(launch, Arguments{}, kWarpUnit);
  return launch;
}

/// Addresses that are never read: tensor t of list l is at 1000 · t + l.
Plan plan_of(int lists, const std::vector<int64>& sizes) {
  Plan plan;
  plan.lists = lists;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    for (int list = 0; list < lists; ++list) {
      plan.data.push_back(reinterpret_cast<void*>(1000 * t + list));
      plan.dtypes.push_back(list == 0 ? DType::kFloat16 : DType::kFloat32);
    }
    plan.offsets.push_back(plan.offsets.back() + sizes[t]);
    plan.positions.push_back(static_cast<int32>(7 * t));
  }
  return plan;
}

TEST(Fill, NumbersTheUnitsThroughTheTable) {
  auto launch = empty_launch<CopyCastArguments>();
  const Plan plan = plan_of(2, {1, kWarpUnit, kWarpUnit + 1, 5 * kWarpUnit - 1});
  EXPECT_EQ(fill(launch, plan, 0), 4);
  EXPECT_EQ(launch.entries, 4);
  EXPECT_EQ(launch.units, 1u + 1u + 2u + 5u);
  const uint32 first_units[] = {0, 1, 2, 4};
  const int last_units[] = {1, kWarpUnit, 1, kWarpUnit - 1};
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(launch.entry(t).first_unit, first_units[t]);
    EXPECT_EQ(launch.entry(t).last_unit_elements, last_units[t]);
    EXPECT_EQ(launch.entry(t).position, 7 * t);
  }
}

TEST(Fill, KeepsAddressesAndDtypesPerList) {
  auto launch = empty_launch<UnscaleArguments>();
  fill(launch, plan_of(2, {3, 3}), 0);
  EXPECT_EQ(launch.entry(1).address[0], reinterpret_cast<void*>(1000));
  EXPECT_EQ(launch.entry(1).address[1], reinterpret_cast<void*>(1001));
  EXPECT_EQ(launch.entry(1).dtype(0), DType::kFloat16);
  EXPECT_EQ(launch.entry(1).dtype(1), DType::kFloat32);
}

TEST(Fill, TakesMoreElementsThan32BitsCount) {
  auto launch = empty_launch<CheckArguments>();
  const int64 many = (int64{1} << 33) + 8;
  fill(launch, plan_of(1, {many, 5}), 0);
  EXPECT_EQ(launch.entry(0).last_unit_elements, 8);
  EXPECT_EQ(launch.entry(1).first_unit, (1u << 22) + 1);
  EXPECT_EQ(launch.units, (1u << 22) + 2);
}

TEST(Fill, StopsWhereTheTableIsFull) {
  auto launch = empty_launch<CheckArguments>();
  const int capacity = Launch<CheckArguments>::kCapacity;
  const Plan plan = plan_of(1, std::vector<int64>(capacity + 3, 1));
  EXPECT_EQ(fill(launch, plan, 0), capacity);
  EXPECT_EQ(launch.entries, capacity);
  EXPECT_EQ(fill(launch, plan, capacity), capacity + 3);
  EXPECT_EQ(launch.entries, 3);
  EXPECT_EQ(launch.units, 3u);
  EXPECT_EQ(launch.entry(0).first_unit, 0u);
}

TEST(Fill, SeesWherePositionsFollowOneAnother) {
  auto launch = empty_launch<CheckArguments>();
  Plan plan = plan_of(1, {1, 1, 1});
  fill(launch, plan, 0);
  EXPECT_FALSE(launch.consecutive);
  plan.positions = {4, 5, 6};
  fill(launch, plan, 0);
  EXPECT_TRUE(launch.consecutive);
  EXPECT_EQ(launch.first_position, 4);
}

TEST(Fill, WritesTheRowsThatAreNamedOnce) {
  auto launch = empty_launch<StepArguments<Sgd>>();
  Plan plan = plan_of(3, {1, 1, 1, 1});
  plan.rows = {2, 0, 2, 0};
  const Rows<StepArguments<Sgd>> rows = {{{10.0}}, {{11.0}}, {{12.0}}};
  EXPECT_EQ(fill(launch, plan, 0, rows), 4);
  const double first_values[] = {12.0, 10.0, 12.0, 10.0};
  const int slots[] = {0, 1, 0, 1};
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(launch.entry(t).row, slots[t]);
    EXPECT_EQ(launch.row(launch.entry(t).row).values[0], first_values[t]);
  }
}

TEST(Fill, StopsWhereRowsMeetEntries) {
  auto launch = empty_launch<StepArguments<Sgd>>();
  Plan plan = plan_of(3, std::vector<int64>(1000, 1));
  for (int32 t = 0; t < 1000; ++t) plan.rows.push_back(t);
  const int64 each = sizeof(Entry<3>) + sizeof(HyperRow);
  EXPECT_EQ(fill(launch, plan, 0, Rows<StepArguments<Sgd>>(1000)),
            Launch<StepArguments<Sgd>>::kTableBytes / each);
}

TEST(Capacity, IsOverAThousandTensorsOfOneOrTwoLists) {
  EXPECT_GT(Launch<CheckArguments>::kCapacity, 1300);
  EXPECT_GT(Launch<UnscaleArguments>::kCapacity, 1000);
  EXPECT_GT(Launch<AxpbyArguments>::kCapacity, 800);
}

TEST(ForEachTable, VisitsEveryTensorOnceWithTheArguments) {
  const std::size_t tensors = 2 * Launch<UnscaleArguments>::kCapacity + 1;
  const Plan plan = plan_of(2, std::vector<int64>(tensors, 2));
  std::vector<int32> positions;
  int launches = 0;
  const UnscaleArguments arguments{{}, {}, /*accumulate=*/true};
  for_each_table<Launch<UnscaleArguments>>(plan, arguments, kWarpUnit, {}, [&](const auto& launch) {
    ++launches;
    EXPECT_TRUE(launch.arguments.accumulate);
    for (int i = 0; i < launch.entries; ++i) positions.push_back(launch.entry(i).position);
  });
  EXPECT_EQ(launches, 3);
  EXPECT_EQ(positions, plan.positions);
}

TEST(UnitsOf, CountsWhatTheTablesHold) {
  const Plan plan = plan_of(1, {1, kBlockUnit, kBlockUnit + 1, 3 * kBlockUnit});
  EXPECT_EQ(units_of(plan, kBlockUnit), 1 + 1 + 2 + 3);
}

}  // namespace
}  // namespace torchamp::cuda

#include <ATen/ops/empty.h>

#include "device.h"
#include "ops/plan_builder.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;

class PlanBuilderTest : public DeviceTest {
 protected:
  static Tensor make(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device()));
  }
  static Work built(const std::vector<Tensor>& first, const std::vector<Tensor>& second,
                    bool use_kernels = true) {
    return build_plan("op", {{"first", first}, {"second", second}},
                      DeviceKernels(device(), use_kernels));
  }
};

TEST_P(PlanBuilderTest, LaysTensorsEndToEnd) {
  const std::vector<Tensor> in = {make({3, 4}), make({5}, at::kHalf), make({})};
  const std::vector<Tensor> out = {make({3, 4}, at::kBFloat16), make({5}), make({}, at::kHalf)};
  const Plan plan = built(in, out).plan;
  EXPECT_EQ(plan.lists, 2);
  EXPECT_EQ(plan.offsets, (std::vector<int64>{0, 12, 17, 18}));
  EXPECT_EQ(plan.positions, (std::vector<int32>{0, 1, 2}));
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(plan.address(i, 0), in[i].data_ptr());
    EXPECT_EQ(plan.address(i, 1), out[i].data_ptr());
  }
  EXPECT_EQ(plan.dtype(0, 1), DType::kBFloat16);
  EXPECT_EQ(plan.dtype(1, 0), DType::kFloat16);
  EXPECT_EQ(plan.dtype(2, 0), DType::kFloat32);
}

TEST_P(PlanBuilderTest, SkipsUndefinedTensors) {
  const std::vector<Tensor> in = {Tensor(), make({2}), make({0, 3}), make({4})};
  const std::vector<Tensor> out = {make({1}), Tensor(), make({0, 3}), make({4})};
  const Work work = built(in, out);
  EXPECT_EQ(work.plan.positions, (std::vector<int32>{3}));
  EXPECT_EQ(work.plan.elements(), 4);
  EXPECT_TRUE(work.rest.empty());
}

TEST_P(PlanBuilderTest, KnownTensorsAreFoundWhereTheyWereMovedTo) {
  const std::vector<Tensor> first = {make({3}), make({2, 2})}, second = {make({3}), make({2, 2})};
  KnownTensors known;
  known.resize(2);
  NamedList list{"second", second};
  list.known = &known;
  const auto expect_addresses = [&] {
    const Plan plan =
        build_plan("op", {{"first", first}, list}, DeviceKernels(device(), true)).plan;
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(plan.address(i, 1), second[i].data_ptr()) << i;
  };
  expect_addresses();
  second[0].set_data(make({3}));
  expect_addresses();
  second[1].set_data(make({2, 2}, at::kHalf));
  expect_addresses();
  second[0].resize_({1000}).resize_({3});
  expect_addresses();
  EXPECT_EQ(
      build_plan("op", {{"first", first}, list}, DeviceKernels(device(), true)).plan.dtype(1, 1),
      DType::kFloat16);
}

TEST_P(PlanBuilderTest, KnownTensorsOfOtherSizesAreRefused) {
  const std::vector<Tensor> first = {make({3})}, wider = {make({4})}, second = {make({3})};
  KnownTensors known;
  known.resize(1);
  NamedList list{"second", second};
  list.known = &known;
  build_plan("op", {{"first", first}, list}, DeviceKernels(device(), true));
  EXPECT_THROW(build_plan("op", {{"first", wider}, list}, DeviceKernels(device(), true)),
               c10::Error);
}

TEST_P(PlanBuilderTest, OfNothingIsEmpty) {
  const Work work = built({}, {});
  EXPECT_EQ(work.plan.tensors(), 0);
  EXPECT_EQ(work.plan.elements(), 0);
}

TEST_P(PlanBuilderTest, TakesAnyDenseOrderThatAllListsShare) {
  const Tensor image = make({2, 3, 4, 5});
  const std::vector<Tensor> in = {image.clone(at::MemoryFormat::ChannelsLast), make({6, 7}).t(),
                                  make({8}).narrow(0, 1, 7)};
  const std::vector<Tensor> out = {image.clone(at::MemoryFormat::ChannelsLast), make({6, 7}).t(),
                                   make({7})};
  EXPECT_EQ(built(in, out).plan.tensors(), 3);
}

TEST_P(PlanBuilderTest, TakesContiguousTensorsWhoseStridesOfLengthOneDiffer) {
  const std::vector<Tensor> in = {make({1, 4})};
  const std::vector<Tensor> out = {make({4, 1}).t()};
  ASSERT_NE(in[0].strides(), out[0].strides());
  EXPECT_EQ(built(in, out).plan.tensors(), 1);
}

TEST_P(PlanBuilderTest, LeavesTheOthersToAten) {
  const std::vector<Tensor> in = {make({4}, at::kDouble), make({3, 4}), make({8}).slice(0, 0, 8, 2),
                                  make({1}).expand({4}), make({2, 3, 4, 5})};
  const std::vector<Tensor> out = {make({4}), make({4, 3}).t(), make({8}).slice(0, 0, 8, 2),
                                   make({4}),
                                   make({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast)};
  const Work work = built(in, out);
  EXPECT_EQ(work.plan.tensors(), 0);
  EXPECT_EQ(work.rest, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST_P(PlanBuilderTest, LeavesEverythingToAtenWithoutKernels) {
  const std::vector<Tensor> tensors = {make({4}), Tensor(), make({0}), make({2}, at::kHalf)};
  const Work work = built(tensors, tensors, /*use_kernels=*/false);
  EXPECT_EQ(work.plan.tensors(), 0);
  EXPECT_EQ(work.rest, (std::vector<int64_t>{0, 3}));
}

TEST_P(PlanBuilderTest, OfThousandsKeepsTheirPlaces) {
  std::vector<Tensor> in, out;
  for (int i = 0; i < 5000; ++i) {
    in.push_back(i % 3 == 0 ? Tensor() : make({i % 7 + 1}));
    out.push_back(in.back());
  }
  const Plan plan = built(in, out).plan;
  EXPECT_EQ(plan.tensors(), 5000 - 1667);
  for (int64 t = 0; t < plan.tensors(); ++t) {
    ASSERT_EQ(plan.address(t, 0), in[plan.positions[t]].data_ptr());
    ASSERT_EQ(plan.offsets[t + 1] - plan.offsets[t], in[plan.positions[t]].numel());
  }
}

TEST_P(PlanBuilderTest, FlagsPointIntoTheTensorsGiven) {
  const Tensor found_inf = make({}), per_tensor = clear_flags(3, device());
  const Flags both = make_flags(found_inf, per_tensor);
  EXPECT_EQ(both.found_inf, found_inf.data_ptr());
  EXPECT_EQ(both.per_tensor, per_tensor.data_ptr());
  const Flags neither = make_flags(Tensor(), std::nullopt);
  EXPECT_EQ(neither.found_inf, nullptr);
  EXPECT_EQ(neither.per_tensor, nullptr);
}

TORCHAMP_ON_EACH_DEVICE(PlanBuilderTest);

}  // namespace
}  // namespace torchamp

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torchamp/ops.h>

#include <cmath>
#include <utility>

#include "device.h"
#include "lists.h"
#include "oracle.h"

namespace torchamp {
namespace {

using at::Tensor;

class ScaleTest : public DeviceTest {
 protected:
  Tensor found_inf_ = scalar_of(0, at::kFloat, device());
  bool found() const { return found_inf_.item<float>() != 0; }
};

TEST_P(ScaleTest, MatchesTheOracleBitForBit) {
  const Lists all = every_dtype(2, device());
  for (const double factor : {0.37, 1024.0, -1.0}) {
    const auto outputs = clones(all.lists[1]);
    ops::scale(all.lists[0], outputs, factor, found_inf_);
    for (size_t i = 0; i < all.length(); ++i) {
      const Tensor& input = all.lists[0][i];
      if (!outputs[i].defined()) continue;
      const Tensor& before = all.lists[1][i];
      const Tensor expected = input.defined() ? oracle::scale(input, before, factor) : before;
      EXPECT_TRUE(same_bits(outputs[i], expected)) << all.names[i] << ", factor " << factor;
    }
  }
  EXPECT_FALSE(found());
}

TEST_P(ScaleTest, WritesOverItsInputs) {
  for (const auto dtype : kDtypes) {
    const std::vector<Tensor> tensors = {Random(1).normal({1000}, dtype, device())};
    const Tensor expected = oracle::scale(tensors[0], tensors[0], 0.1);
    ops::scale(tensors, tensors, 0.1, found_inf_);
    EXPECT_TRUE(same_bits(tensors[0], expected)) << dtype;
  }
}

TEST_P(ScaleTest, FlagsTheTensorsWithANonfiniteInput) {
  for (const auto dtype : kDtypes) {
    for (const double bad : {double{INFINITY}, double{-INFINITY}, double{NAN}}) {
      const std::vector<Tensor> inputs = {tensor_of({1, 2, 3}, dtype, device()),
                                          tensor_of({1, 2, bad}, dtype, device()),
                                          tensor_of({bad}, dtype, device())};
      const Tensor flags = clear_flags(3, device());
      found_inf_.zero_();
      ops::scale(inputs, clones(inputs), 0.0, found_inf_, flags);
      EXPECT_TRUE(found());
      EXPECT_TRUE(same_bits(flags, tensor_of({0, 1, 1}, at::kByte, device()))) << dtype << bad;
    }
  }
}

TEST_P(ScaleTest, FlagsA16BitOutputThatOverflowsButNoWiderOne) {
  const std::vector<Tensor> inputs(4, tensor_of({1, 3e38, 1}, at::kFloat, device()));
  std::vector<Tensor> outputs;
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    outputs.push_back(inputs[0].to(dtype, /*non_blocking=*/false, /*copy=*/true));
  }
  const Tensor flags = clear_flags(4, device());
  ops::scale(inputs, outputs, 1.1999, found_inf_, flags);
  EXPECT_TRUE(found());
  EXPECT_TRUE(same_bits(flags, tensor_of({0, 1, 1, 0}, at::kByte, device())));
}

TEST_P(ScaleTest, A16BitOutputOverflowsFromHalfAUnitAboveItsLargestOn) {
  const std::pair<at::ScalarType, float> least[] = {{at::kHalf, 65520.0f},
                                                    {at::kBFloat16, 0x1.ffp127f}};
  for (const auto& [dtype, overflow] : least) {
    for (const int64_t length : {1, 37, 5000}) {
      for (const float value : {overflow, -overflow, std::nextafter(overflow, 0.0f)}) {
        const Tensor input = at::zeros({length}, device());
        input[length / 2] = value;
        const std::vector<Tensor> outputs = {at::empty({length}, input.options().dtype(dtype))};
        found_inf_.zero_();
        ops::scale({input}, outputs, 1, found_inf_);
        EXPECT_EQ(found(), std::abs(value) == overflow) << dtype << ", " << length << ", " << value;
        EXPECT_EQ(found(), outputs[0].isinf().any().item<bool>());
      }
    }
  }
}

TEST_P(ScaleTest, NeverClearsFoundInf) {
  const std::vector<Tensor> clean = {tensor_of({1}, at::kFloat, device())};
  found_inf_.fill_(1);
  ops::scale(clean, clean, 2.0, found_inf_);
  EXPECT_TRUE(found());
}

TEST_P(ScaleTest, BumpsTheVersionsOfItsOutputs) {
  const std::vector<Tensor> inputs = {tensor_of({1}, at::kFloat, device())};
  const auto outputs = clones(inputs);
  const auto input_version = inputs[0]._version(), output_version = outputs[0]._version();
  const auto found_version = found_inf_._version();
  ops::scale(inputs, outputs, 2.0, found_inf_);
  EXPECT_EQ(inputs[0]._version(), input_version);
  EXPECT_GT(outputs[0]._version(), output_version);
  EXPECT_GT(found_inf_._version(), found_version);
}

/// 9 M elements are written with non-temporal stores in every dtype; the first is misaligned.
TEST_P(ScaleTest, LargeMisalignedTensorsAreWhole) {
  constexpr int64_t kCount = 9'000'001;
  const Tensor memory = Random(2).normal({kCount + 2}, at::kFloat, device());
  const std::vector<Tensor> inputs = {memory.narrow(0, 1, kCount)};
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const Tensor room = memory.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    const std::vector<Tensor> outputs = {room.narrow(0, 1, kCount)};
    ops::scale(inputs, outputs, 3.0, found_inf_);
    EXPECT_TRUE(same_bits(outputs[0], inputs[0].mul(3.0).to(dtype))) << dtype;
    EXPECT_TRUE(same_bits(room[0], memory[0].to(dtype)));
    EXPECT_TRUE(same_bits(room[kCount + 1], memory[kCount + 1].to(dtype)));
  }
}

TORCHAMP_ON_EACH_DEVICE(ScaleTest);

}  // namespace
}  // namespace torchamp

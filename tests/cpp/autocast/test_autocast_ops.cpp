#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/std.h>
#include <torchamp/autocast.h>

#include <thread>

#include "autocast/open_autocast.h"
#include "device.h"
#include "errors.h"
#include "tensors.h"

namespace torchamp {
namespace {

class AutocastOpsTest : public DeviceTest {
 protected:
  static OpenAutocast open(at::ScalarType dtype = at::kHalf) { return {{device().type()}, dtype}; }
  static at::Tensor matrix(at::ScalarType dtype = at::kFloat) {
    return Random(60).normal({3, 3}, dtype, device());
  }
};

bool has_cpu_kernel(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  return op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
}

TEST_P(AutocastOpsTest, CastToLowPrecision) {
  const OpenAutocast opened = open(at::kBFloat16);
  EXPECT_EQ(at::mv(matrix(), matrix()[0]).scalar_type(), at::kBFloat16);
}

TEST_P(AutocastOpsTest, CastToFloat32) {
  const OpenAutocast opened = open();
  EXPECT_EQ(at::log(matrix(at::kHalf)).scalar_type(), at::kFloat);
  EXPECT_EQ(at::std(matrix(at::kBFloat16)).scalar_type(), at::kFloat);
}

TEST_P(AutocastOpsTest, CastToTheWidest) {
  const OpenAutocast opened = open();
  const at::Tensor factor = scalar_of(2, at::kFloat, device());
  EXPECT_EQ(at::mul(matrix(at::kHalf), factor).scalar_type(), at::kFloat);
  EXPECT_EQ(at::mul(matrix(at::kHalf), 2).scalar_type(), at::kHalf);
  EXPECT_EQ(at::add(matrix(at::kHalf), matrix(at::kDouble)).scalar_type(), at::kDouble);
}

/// On CUDA torch refuses it, also in float32.
TEST_P(AutocastOpsTest, RefuseACrossEntropyOf16Bits) {
  if (device().is_cuda()) GTEST_SKIP();
  const auto loss_in = [&](at::ScalarType dtype) {
    return at::binary_cross_entropy(matrix(dtype).sigmoid(), matrix().sigmoid());
  };
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const OpenAutocast opened = open(dtype);
    EXPECT_THROW(loss_in(dtype), c10::NotImplementedError);
    EXPECT_TRUE(
        contains(message_of([&] { loss_in(dtype); }), "use binary_cross_entropy_with_logits"));
    EXPECT_EQ(loss_in(at::kFloat).scalar_type(), at::kFloat);
    std::thread([&] {
      const autocast scope(device().type(), at::kBFloat16);
      EXPECT_EQ(loss_in(at::kBFloat16).scalar_type(), at::kFloat) << "torch's rule";
    }).join();
  }
}

TEST_P(AutocastOpsTest, WriteInPlaceInTheTypeOfSelf) {
  const OpenAutocast opened = open();
  at::Tensor low = matrix(at::kHalf);
  low.addmm_(matrix(), matrix(at::kHalf));
  EXPECT_EQ(low.scalar_type(), at::kHalf);
}

TEST_P(AutocastOpsTest, RefuseToWriteFloat32InPlace) {
  const OpenAutocast opened = open();
  at::Tensor low = matrix(at::kHalf);
  EXPECT_EQ(message_of<c10::NotImplementedError>([&] { low.exp_(); }),
            "exp_: expected a float32 tensor, got Half; under O1 and O4 the result is float32, "
            "which cannot be written in place: call exp, or use amp.disable_casts()");
  EXPECT_TRUE(same_bits(low, matrix(at::kHalf)));
  EXPECT_EQ(matrix().exp_().scalar_type(), at::kFloat);
}

TEST_P(AutocastOpsTest, AreSilentUnderAShield) {
  const OpenAutocast opened = open();
  const disable_casts shield;
  EXPECT_EQ(at::exp(matrix(at::kHalf)).scalar_type(), at::kHalf);
  EXPECT_FALSE(casting_to(device().type()));
}

TEST_P(AutocastOpsTest, AreSilentInOtherThreads) {
  const OpenAutocast opened = open();
  at::ScalarType in_thread = at::kByte;
  std::thread([&] {
    const autocast guard(device().type(), at::kHalf);
    in_thread = at::std(matrix(at::kHalf)).scalar_type();
  }).join();
  EXPECT_EQ(in_thread, at::kHalf);
}

TEST_P(AutocastOpsTest, FollowTheDtypeOfAScopeInside) {
  const OpenAutocast opened = open();
  const autocast guard(device().type(), at::kBFloat16);
  EXPECT_EQ(at::mv(matrix(), matrix()[0]).scalar_type(), at::kBFloat16);
}

TORCHAMP_ON_EACH_DEVICE(AutocastOpsTest);

TEST(AutocastOpsRegistration, LastsAsLongAsTheLastThatIsOpen) {
  EXPECT_FALSE(has_cpu_kernel("aten::exp"));
  {
    OpenAutocast first({at::kCPU}, at::kHalf);
    OpenAutocast second({at::kCPU}, at::kHalf);
    first.close();
    first.close();
    EXPECT_TRUE(has_cpu_kernel("aten::exp"));
  }
  EXPECT_FALSE(has_cpu_kernel("aten::exp"));
  EXPECT_TRUE(has_cpu_kernel("aten::mm")) << "torch's own";
}

}  // namespace
}  // namespace torchamp

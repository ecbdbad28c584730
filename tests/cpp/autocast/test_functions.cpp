#include <ATen/autocast_mode.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>
#include <torchamp/functions.h>

#include "autocast/open_autocast.h"
#include "device.h"
#include "tensors.h"

namespace torchamp {
namespace {

using Types = std::vector<at::ScalarType>;

class FunctionsTest : public DeviceTest {
 protected:
  static at::Tensor matrix(at::ScalarType dtype) {
    return Random(70).normal({3, 3}, dtype, device());
  }
  static OpenAutocast open(at::ScalarType dtype = at::kHalf) { return {{device().type()}, dtype}; }
  /// The dtypes with which float16, float32 and float64 matrices reach `types_of`.
  template <class Wrapped>
  static Types through(Wrapped wrapped) {
    return wrapped(matrix(at::kHalf), matrix(at::kFloat), matrix(at::kDouble));
  }
};

Types types_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  return {a.scalar_type(), b.scalar_type(), c.scalar_type()};
}

TEST_P(FunctionsTest, CastWhereItIsOn) {
  const OpenAutocast opened = open();
  EXPECT_EQ(through(half_function(types_of)), Types({at::kHalf, at::kHalf, at::kDouble}));
  EXPECT_EQ(through(bfloat16_function(types_of)),
            Types({at::kBFloat16, at::kBFloat16, at::kDouble}));
  EXPECT_EQ(through(float_function(types_of)), Types({at::kFloat, at::kFloat, at::kDouble}));
  EXPECT_EQ(through(promote_function(types_of)), Types({at::kFloat, at::kFloat, at::kDouble}));
}

/// An extension's op, which must stay in float32.
at::Tensor precise(const at::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torchamp_functions::precise", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

at::Tensor cast_precise(const at::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return precise(at::autocast::cached_cast(at::kFloat, x, x.device().type()));
}

TORCH_LIBRARY(torchamp_functions, m) {
  m.def("precise", [](const at::Tensor& x) { return x.clone(); });
}
TORCH_LIBRARY_IMPL(torchamp_functions, AutocastCPU, m) {
  m.impl("precise", &cast_precise);
}
TORCH_LIBRARY_IMPL(torchamp_functions, AutocastCUDA, m) {
  m.impl("precise", &cast_precise);
}

TEST_P(FunctionsTest, AreOpsWithAutocastKernelsToo) {
  EXPECT_EQ(precise(matrix(at::kHalf)).scalar_type(), at::kHalf);
  const OpenAutocast opened = open();
  EXPECT_EQ(precise(matrix(at::kHalf)).scalar_type(), at::kFloat);
}

TEST_P(FunctionsTest, CastToTheLevelsType) {
  const OpenAutocast opened = open(at::kBFloat16);
  EXPECT_EQ(through(half_function(types_of)), Types({at::kBFloat16, at::kBFloat16, at::kDouble}));
}

TEST_P(FunctionsTest, LeaveOneTypeAsItIsWhenPromoting) {
  const OpenAutocast opened = open();
  const auto low = promote_function(types_of)(matrix(at::kHalf), matrix(at::kHalf), at::Tensor());
  EXPECT_EQ(low, Types({at::kHalf, at::kHalf, at::ScalarType::Undefined}));
}

TEST_P(FunctionsTest, DoNothingWhereItIsOff) {
  const Types as_given = {at::kHalf, at::kFloat, at::kDouble};
  auto wrapped = float_function(types_of);
  EXPECT_EQ(through(wrapped), as_given);
  const OpenAutocast opened = open();
  const disable_casts shield;
  EXPECT_EQ(through(wrapped), as_given);
}

TEST_P(FunctionsTest, CastOptionalTensorsAndLists) {
  const OpenAutocast opened = open();
  auto wrapped = half_function([](const std::optional<at::Tensor>& bias,
                                  const std::vector<at::Tensor>& tensors, double factor) {
    return bias->scalar_type() == at::kHalf && tensors[0].scalar_type() == at::kHalf &&
           tensors[1].scalar_type() == at::kHalf && factor == 2.5;
  });
  const std::vector<at::Tensor> tensors = {matrix(at::kHalf), matrix(at::kFloat)};
  EXPECT_TRUE(wrapped(std::make_optional(matrix(at::kFloat)), tensors, 2.5));
  const auto type_of = [](const at::Tensor& x) { return x.scalar_type(); };
  const auto fixed = half_function(type_of);
  EXPECT_EQ(fixed(matrix(at::kFloat).to(at::kLong)), at::kLong);
  EXPECT_EQ(tensors[1].scalar_type(), at::kFloat) << "the caller's were changed";
  auto empty = half_function([](const std::optional<at::Tensor>& bias) { return !bias; });
  EXPECT_TRUE(empty(std::optional<at::Tensor>()));
}

TEST_P(FunctionsTest, RunWithoutFurtherCasts) {
  const OpenAutocast opened = open();
  auto product = [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); };
  EXPECT_EQ(float_function(product)(matrix(at::kHalf), matrix(at::kFloat)).scalar_type(),
            at::kFloat);
  EXPECT_EQ(half_function(at::exp)(matrix(at::kFloat)).scalar_type(), at::kHalf);
  EXPECT_EQ(at::mm(matrix(at::kFloat), matrix(at::kFloat)).scalar_type(), at::kHalf);
}

TEST_P(FunctionsTest, WrapMemberFunctionsAndKeepReferences) {
  struct Layer {
    at::ScalarType seen = at::kByte;
    Layer& forward(const at::Tensor& x) {
      seen = x.scalar_type();
      return *this;
    }
  };
  const OpenAutocast opened = open();
  Layer layer;
  Layer& returned = half_function(&Layer::forward)(layer, matrix(at::kFloat));
  EXPECT_EQ(&returned, &layer);
  EXPECT_EQ(layer.seen, at::kHalf);
}

TEST_P(FunctionsTest, LetGradientsThrough) {
  const OpenAutocast opened = open();
  const at::Tensor leaf = matrix(at::kFloat).set_requires_grad(true);
  half_function([](const at::Tensor& x) { return x.sum(); })(leaf).backward();
  EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat);
}

TORCHAMP_ON_EACH_DEVICE(FunctionsTest);

}  // namespace
}  // namespace torchamp

// Ops that are registered by name.
#include <torch/library.h>
#include <torchamp/functions.h>

#include "autocast_test.h"
#include "errors.h"

namespace torchamp {
namespace {

using at::Tensor;

/// The dtypes of the tensors in the last call of an op below.
std::vector<at::ScalarType> given;

Tensor note(const Tensor& x, at::TensorList xs, const std::optional<Tensor>& y) {
  given = {x.scalar_type()};
  for (const Tensor& tensor : xs) given.push_back(tensor.scalar_type());
  if (y) given.push_back(y->scalar_type());
  return x.clone();
}

TORCH_LIBRARY(torchamp_functions, m) {
  for (const char* name : {"half", "float", "bfloat16", "promote", "none"}) {
    m.def((std::string(name) + "(Tensor x, Tensor[] xs, Tensor? y) -> Tensor").c_str(), &note);
  }
  m.def("several.of(Tensor x, Tensor[] xs, Tensor? y) -> Tensor", &note);
}

void register_all() {
  static const bool once = [] {
    register_half_op("torchamp_functions::half");
    register_float_op("torchamp_functions::float");
    register_bfloat16_op("torchamp_functions::bfloat16");
    register_promote_op("torchamp_functions::promote");
    register_half_op("torchamp_functions::several.of");
    return true;
  }();
  (void)once;
}

class FunctionsOpsTest : public AutocastTest {
 protected:
  using Types = std::vector<at::ScalarType>;

  FunctionsOpsTest() { register_all(); }

  static Tensor matrix(at::ScalarType dtype) { return Random(71).normal({2, 2}, dtype, device()); }
  /// The dtypes that the op receives for float32, [float16, float64] and float32.
  static Types through(const char* name, const char* overload = "") {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        (std::string("torchamp_functions::") + name).c_str(), overload);
    const std::vector<Tensor> list = {matrix(at::kHalf), matrix(at::kDouble)};
    op.typed<Tensor(const Tensor&, at::TensorList, const std::optional<Tensor>&)>().call(
        matrix(at::kFloat), list, matrix(at::kFloat));
    return given;
  }
};

TEST_P(FunctionsOpsTest, CastUnderO1AndInScopes) {
  const auto check = [](at::ScalarType low) {
    EXPECT_EQ(through("half"), Types({low, low, at::kDouble, low}));
    EXPECT_EQ(through("several", "of"), Types({low, low, at::kDouble, low}));
    EXPECT_EQ(through("float"), Types({at::kFloat, at::kFloat, at::kDouble, at::kFloat}));
    EXPECT_EQ(through("bfloat16"),
              Types({at::kBFloat16, at::kBFloat16, at::kDouble, at::kBFloat16}));
    EXPECT_EQ(through("promote"), Types({at::kFloat, at::kFloat, at::kDouble, at::kFloat}));
  };
  {
    const OpenAutocast opened = open();
    check(at::kHalf);
  }
  const autocast guard(type(), at::kBFloat16);
  check(at::kBFloat16);
}

TEST_P(FunctionsOpsTest, DoNothingElsewhere) {
  const Types as_given = {at::kFloat, at::kHalf, at::kDouble, at::kFloat};
  EXPECT_EQ(through("half"), as_given);
  const OpenAutocast opened = open();
  EXPECT_EQ(through("none"), as_given);
  const disable_casts off;
  EXPECT_EQ(through("half"), as_given);
}

TEST_P(FunctionsOpsTest, LetGradientsThrough) {
  const autocast guard(type(), at::kHalf);
  const Tensor leaf = matrix(at::kFloat).requires_grad_();
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("torchamp_functions::half", "");
  op.typed<Tensor(const Tensor&, at::TensorList, const std::optional<Tensor>&)>()
      .call(leaf, {}, std::nullopt)
      .sum()
      .backward();
  EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat);
}

TEST_P(FunctionsOpsTest, RefuseWhatIsNoOpAndWhatHasARule) {
  EXPECT_EQ(message_of([] { register_half_op("torchamp_functions::absent"); }),
            "register_half_op: expected name to be that of an op, \"space::op\" or "
            "\"space::op.overload\", got \"torchamp_functions::absent\", which is not "
            "registered");
  for (const char* name : {"aten::mm", "torchamp_functions::half"}) {
    EXPECT_EQ(message_of([&] { register_float_op(name); }),
              std::string("register_float_op: expected an op without an autocast rule, got \"") +
                  name + "\"; wrap the call, for example with half_function");
  }
}

TORCHAMP_ON_EACH_DEVICE(FunctionsOpsTest);

}  // namespace
}  // namespace torchamp

// What a Model adds to errors about dtypes, and the remedies that it names.
#include <torch/nn/modules/activation.h>
#include <torchamp/functions.h>

#include <cmath>
#include <exception>
#include <stdexcept>
#include <typeinfo>

#include "net.h"
#include "tensors.h"

namespace torchamp {
namespace {

/// The dtypes of a level that has 16 bits.
at::ScalarType low(OptLevel level) {
  return level == OptLevel::O1 || level == OptLevel::O2 ? at::kHalf : at::kBFloat16;
}

/// What its part does is up to each test.
struct AroundImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return part(*this, x); }

  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  torch::nn::MultiheadAttention attention = register_module(
      "attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(4, 2)));
  std::function<at::Tensor(AroundImpl&, const at::Tensor&)> part;
};
TORCH_MODULE(Around);

using Part = decltype(AroundImpl::part);

at::Tensor attend(AroundImpl& net, const at::Tensor& x) {
  const at::Tensor padding = at::zeros({1, 3}, x.options().dtype(at::kBool));
  return std::get<0>(net.attention(x, x, x, padding));
}

class ExplainTest : public LevelTest {
 protected:
  /// The net at the level, called with a float32 [3, 1, 4].
  static at::Tensor call(const Part& part, const Options& options = quiet(level())) {
    Around net;
    net->part = part;
    net->to(device());
    torch::optim::SGD sgd(net->parameters(), 0.5);
    auto model = initialize(net, sgd, options).model;
    return model(Random(1).normal({3, 1, 4}, at::kFloat, device()));
  }

  static std::string context_of(const Part& part) {
    try {
      call(part);
    } catch (const c10::Error& error) {
      return c10::Join("\n", error.context());
    }
    return "no error";
  }

  static bool casts_ops() { return level() == OptLevel::O1 || level() == OptLevel::O4; }
};

TEST_P(ExplainTest, AnOpWithoutAKernelIsToldHowToRunInFloat32) {
  const std::string expected =
      c10::str("forward: LibTorch has no kernel in ", low(level()),
               " here; run this part in float32: in forward "
               "`{ const amp::disable_casts off; y = part(x.to(torch::kFloat)); }`",
               casts_ops() ? "" : ", and name its modules in Options::keep_fp32");
  EXPECT_EQ(
      context_of([](AroundImpl& net, const at::Tensor& x) { return attend(net, net.linear(x)); }),
      expected);
}

TEST_P(ExplainTest, WhichRuns) {
  Options options = quiet(level());
  if (!casts_ops()) options.keep_fp32({"attention"});
  const auto in_float32 = [](AroundImpl& net, const at::Tensor& x) {
    const at::Tensor projected = net.linear(x);
    const disable_casts off;
    return attend(net, projected.to(at::kFloat));
  };
  EXPECT_TRUE(call(in_float32, options).isfinite().all().item<bool>());
}

TEST_P(ExplainTest, AFloat32TensorOfForwardIsToldHowToBeMade) {
  if (casts_ops()) return;  // there the op is cast
  EXPECT_EQ(
      context_of([](AroundImpl&, const at::Tensor& x) {
        return at::mm(x[0], at::ones({4, 4}, x.options().dtype(at::kFloat)));
      }),
      c10::str(
          "forward: the model is in ", low(level()),
          "; make tensors in forward by x.options(), register every module, add modules before "
          "initialize, and call the model, not the module"));
  EXPECT_NO_THROW(call([](AroundImpl&, const at::Tensor& x) {
    return at::mm(x[0], at::ones({4, 4}, x.options()));
  }));
}

TEST_P(ExplainTest, AnOpWithoutARuleIsToldWhatToCast) {
  if (!casts_ops()) return;  // there nothing is mixed but by the program
  if (!device().is_cpu()) GTEST_SKIP() << "CUDA's rules have what this op calls";
  const auto add = [](const at::Tensor& self, const at::Tensor& values) {
    const at::Tensor rows = at::arange(3, self.options().dtype(at::kLong));
    return at::_unsafe_masked_index_put_accumulate(self, self > 0, {rows}, values);
  };
  const auto mixed = [add](AroundImpl& net, const at::Tensor& x) { return add(x, net.linear(x)); };
  EXPECT_EQ(context_of(mixed),
            c10::str("forward: autocast has no rule for this op, which got ", low(level()),
                     " and float32; cast one of them, or wrap the call in amp::float_function or "
                     "amp::promote_function"));
  EXPECT_NO_THROW(call([add](AroundImpl& net, const at::Tensor& x) {
    return promote_function(add)(x, net.linear(x));
  }));
}

TEST_P(ExplainTest, ANumberThatIsTooLargeIsToldWhatToWrite) {
  const auto masked = [](double number) {
    return [number](AroundImpl& net, const at::Tensor& x) {
      return net.linear(x).masked_fill(x > 0, number);
    };
  };
  try {
    call(masked(-1e39));
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_TRUE(typeid(error) == typeid(std::runtime_error));
    EXPECT_NE(std::string(error.what())
                  .find(c10::str("\nforward: ", low(level()),
                                 " does not hold a number of this size; write -INFINITY in the "
                                 "place of a mask's number like -1e9")),
              std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(call(masked(-INFINITY)));
}

TEST_P(ExplainTest, AnExceptionOfAnotherClassIsNested) {
  struct Strange : std::exception {
    const char* what() const noexcept override { return "could not create a primitive"; }
  };
  try {
    call([](AroundImpl&, const at::Tensor&) -> at::Tensor { throw Strange(); });
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("could not create a primitive\nforward: ", 0), 0U);
    EXPECT_THROW(std::rethrow_if_nested(error), Strange);
  }
}

TEST_P(ExplainTest, OtherErrorsAreAsTheyWere) {
  EXPECT_EQ(context_of([](AroundImpl&, const at::Tensor& x) { return at::mm(x, x); }), "");
}

TORCHAMP_AT_LEVELS(ExplainTest, OptLevel::O1, OptLevel::O2, OptLevel::O4, OptLevel::O5);

}  // namespace
}  // namespace torchamp

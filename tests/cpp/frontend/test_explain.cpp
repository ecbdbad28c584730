// What a Model adds to errors about dtypes, and the remedies that it names.
#include <torch/csrc/autograd/custom_function.h>
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
          "; make tensors in forward by x.options(), register every module, parameter and buffer, "
          "declare amp_members for structs of tensors, cast what parts of keep_fp32 are called "
          "with, add modules before initialize, and call the model, not the module"));
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

/// A matrix product that saves what it is given, and multiplies in what a level makes of it.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& y) {
    context->save_for_backward({x, y});
    return x.mm(y);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
  }
};

class ExplainBackwardTest : public ExplainTest {
 protected:
  /// The last line of the error that a backward raises; the loss is what `part` gives.
  static std::string error_of(const Part& part) {
    Around net;
    net->part = part;
    net->to(device());
    torch::optim::SGD sgd(net->parameters(), 0.5);
    auto [model, optimizer] = initialize(net, sgd, quiet(level()));
    const at::Tensor loss = model(Random(1).normal({3, 1, 4}, at::kFloat, device())).sum();
    try {
      scale_loss(loss, optimizer).backward();
    } catch (const c10::Error& error) {
      return c10::Join("\n", error.context());
    } catch (const std::exception& error) {
      const std::string text = error.what();
      return text.substr(text.rfind('\n') + 1);
    }
    return "no error";
  }

  static Part hooked(const std::function<at::Tensor(const at::Tensor&)>& hook) {
    return [hook](AroundImpl& net, const at::Tensor& x) {
      const at::Tensor y = net.linear(x);
      y.register_hook(hook);
      return y * 2;
    };
  }
};

TEST_P(ExplainBackwardTest, AHookThatChangesTheDtypeIsToldWhatToReturn) {
  EXPECT_EQ(error_of(hooked([](const at::Tensor& grad) { return grad * at::ones({4}, device()); })),
            "backward: a hook of a tensor has to return its grad in the dtype that it came in, "
            "which is that of the tensor, and a mask or factor in float32 widens it; write "
            "mask.to(grad.dtype())");
  EXPECT_EQ(
      error_of(hooked([](const at::Tensor& grad) { return grad * at::ones({4}, grad.options()); })),
      "no error");
}

TEST_P(ExplainBackwardTest, AFunctionOfTwoDtypesIsToldHowToBeCalled) {
  if (!casts_ops()) return;  // there it gets one dtype
  const auto by = [](auto product) {
    return [product](AroundImpl& net, const at::Tensor& x) mutable {
      return product(net.linear(x)[0], net.linear->weight);
    };
  };
  const auto product = [](const at::Tensor& x, const at::Tensor& y) {
    return Product::apply(x, y);
  };
  EXPECT_EQ(error_of(by(product)),
            "backward: an op of the forward has got tensors of two dtypes; cast one of them, as "
            "target.to(output.dtype()), or under autocast call a torch::autograd::Function by "
            "amp::half_function or amp::float_function");
  EXPECT_EQ(error_of(by(half_function(product))), "no error");
  EXPECT_EQ(error_of(by(float_function(product))), "no error");
}

TEST_P(ExplainBackwardTest, ATargetOfAnotherDtypeIsToldToBeCast) {
  if (casts_ops()) return;  // there the loss is in float32
  const auto loss_of = [](at::ScalarType dtype) {
    return [dtype](AroundImpl& net, const at::Tensor& x) {
      const at::Tensor output = net.linear(x);
      return at::huber_loss(output, at::zeros_like(output, dtype));
    };
  };
  EXPECT_EQ(error_of(loss_of(at::kFloat)).rfind("backward: an op of the forward has got", 0), 0U);
  EXPECT_EQ(error_of(loss_of(low(level()))), "no error");
}

TEST_P(ExplainTest, OtherErrorsAreAsTheyWere) {
  EXPECT_EQ(context_of([](AroundImpl&, const at::Tensor& x) { return at::mm(x, x); }), "");
}

TORCHAMP_AT_LEVELS(ExplainTest, OptLevel::O1, OptLevel::O2, OptLevel::O4, OptLevel::O5);
TORCHAMP_AT_LEVELS(ExplainBackwardTest, OptLevel::O1, OptLevel::O2, OptLevel::O4, OptLevel::O5);

}  // namespace
}  // namespace torchamp

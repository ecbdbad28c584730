// Linears in float8 in LibTorch, by the products that they compute.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torchamp/autocast.h>

#include <cmath>
#include <thread>

#include "errors.h"
#include "float8/product.h"
#include "net.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::nn::Linear;
using torch::nn::LinearOptions;

/// The products that `function` computes in float8.
template <class Function>
int64_t products_of(const Function& function) {
  const int64_t before = float8::counts().products;
  function();
  return float8::counts().products - before;
}

/// Two linears that fit, and one that does not.
struct BlocksImpl : torch::nn::Module {
  BlocksImpl() {
    ff = register_module("ff", torch::nn::Sequential(Linear(32, 48), Linear(48, 32)));
    head = register_module("head", Linear(32, 5));
  }
  Tensor forward(const Tensor& x) { return head(ff->forward(x)); }

  torch::nn::Sequential ff{nullptr};
  Linear head{nullptr};
};
TORCH_MODULE(Blocks);

Options in_float8(OptLevel level, std::vector<std::string> names = {"ff"}) {
  return Options(level).float8(std::move(names)).verbosity(0);
}

/// In the dtype of a level's activations.
Tensor activations(OptLevel level, at::IntArrayRef sizes) {
  return at::randn(sizes).to(level == OptLevel::O5 ? at::kBFloat16 : at::kFloat);
}

/// What a float8 copy holds, in float64.
Tensor rounded(const Tensor& tensor, at::ScalarType dtype = at::kFloat8_e4m3fn) {
  const double largest = dtype == at::kFloat8_e4m3fn ? 448 : 57344;
  const double amax = tensor.detach().abs().max().item<double>();
  const double scale = std::exp2(std::ceil(std::log2(amax / largest)));
  return tensor.detach().to(at::kFloat).div(scale).to(dtype).to(at::kDouble).mul(scale);
}

double relative_error(const Tensor& tensor, const Tensor& right) {
  return ((tensor.to(at::kDouble) - right).norm() / right.norm()).item<double>();
}

struct Float8 : testing::TestWithParam<OptLevel> {
  void SetUp() override { torch::manual_seed(0); }
  OptLevel level() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Levels, Float8, testing::Values(OptLevel::O4, OptLevel::O5),
                         [](const auto& info) { return name(info.param); });

TEST_P(Float8, LinearsOfAnyInputAreProducts) {
  struct OneImpl : torch::nn::Module {
    explicit OneImpl(bool bias) {
      layer = register_module("layer", Linear(LinearOptions(64, 32).bias(bias)));
    }
    Tensor forward(const Tensor& x) { return layer(x); }
    Linear layer{nullptr};
  };
  TORCH_MODULE(One);
  for (const bool bias : {true, false}) {
    One one(bias);
    auto amped = initialize(one, in_float8(level(), {"layer"}));
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{64}, {3, 64}, {2, 3, 64}}) {
      const Tensor x = activations(level(), sizes).requires_grad_();
      Tensor y;
      EXPECT_EQ(products_of([&] { y = one->layer(x); }), 1);
      EXPECT_EQ(products_of([&] { y.sum().backward(); }), 2);
      EXPECT_EQ(y.dim(), x.dim());
      EXPECT_EQ(x.grad().sizes(), x.sizes());
      EXPECT_EQ(products_of([&] { y = amped(x.detach()); }), 1);
      EXPECT_EQ(y.scalar_type(), at::kFloat);
    }
    const Tensor x = activations(level(), {3, 64}), &weight = one->layer->weight;
    EXPECT_EQ(products_of([&] { torch::nn::functional::linear(x, weight); }), 1);
    EXPECT_EQ(products_of([&] { at::linear(x, weight.detach()); }), 1);
    EXPECT_EQ(products_of([&] { x.mm(weight.t()); }), 1);
    EXPECT_EQ(products_of([&] { at::einsum("bk,nk->bn", {x, weight}); }), 0);
  }
}

TEST_P(Float8, ModulesOfLibTorch) {
  Blocks net;
  auto amped = initialize(net, in_float8(level()));
  const Tensor x = activations(level(), {4, 32});
  EXPECT_EQ(products_of([&] { amped(x); }), 2);
  EXPECT_EQ(products_of([&] { net->ff->forward(x); }), 2);

  struct AttentionImpl : torch::nn::Module {
    AttentionImpl() { inner = register_module("inner", torch::nn::MultiheadAttention(32, 2)); }
    Tensor forward(const Tensor& x) { return std::get<0>(inner(x, x, x)); }
    torch::nn::MultiheadAttention inner{nullptr};
  };
  TORCH_MODULE(Attention);
  Attention attention;
  auto attends = initialize(attention, in_float8(level(), {"inner"}));
  EXPECT_EQ(products_of([&] { attends(activations(level(), {3, 4, 32})); }), 2);
}

TEST_P(Float8, ProductsAreThoseOfTheRoundedNumbers) {
  Blocks net;
  auto amped = initialize(net, in_float8(level()));
  auto* const layer = net->ff[0]->as<Linear>();
  for (const int64_t rows : {1, 5, 16, 17, 61}) {
    const Tensor x = activations(level(), {rows, 32}).requires_grad_();
    const Tensor g = at::randn({rows, 48}).to(at::kBFloat16);
    net->zero_grad();
    const Tensor y = layer->forward(x);
    y.backward(g);
    const Tensor q = rounded(x), weight = rounded(layer->weight);
    const Tensor of_g = rounded(g, at::kFloat8_e5m2);
    const Tensor sums = q.mm(weight.t()) + layer->bias.detach().to(at::kDouble);
    EXPECT_TRUE(at::equal(y, sums.to(at::kFloat).to(at::kBFloat16)));
    EXPECT_LT(relative_error(x.grad(), of_g.mm(weight)), 0x1p-8);
    const double bound = level() == OptLevel::O4 ? 1e-6 : 0x1p-8;
    EXPECT_LT(relative_error(layer->weight.grad(), of_g.t().mm(q)), bound);
    EXPECT_LT(relative_error(layer->bias.grad(), g.to(at::kDouble).sum(0)), bound);
  }
}

TEST_P(Float8, ProductsWithoutGradsAreTheSame) {
  Blocks net;
  auto amped = initialize(net, in_float8(level()));
  const Tensor x = at::randn({4, 32}), right = amped(x);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(amped(x), right));
  }
  const c10::InferenceMode inference;
  EXPECT_EQ(products_of([&] { EXPECT_TRUE(at::equal(amped(x), right)); }), 2);
}

TEST_P(Float8, OtherThreadsJoinInForwardsAndByState) {
  Blocks net;
  auto amped = initialize(net, in_float8(level()));
  const Tensor x = activations(level(), {4, 32});
  const auto state = autocast::capture_state();
  int64_t in_forward = 0, outside = 0, in_state = 0;
  std::thread([&] {
    in_forward = products_of([&] { amped(x); });
    outside = products_of([&] { net->ff->forward(x.to(net->head->weight.scalar_type())); });
    const auto scope = state.apply();
    in_state = products_of([&] { net->ff->forward(x); });
  }).join();
  EXPECT_EQ(in_forward, 2);
  EXPECT_EQ(outside, 0);
  EXPECT_EQ(in_state, 2);
}

TEST_P(Float8, ScopesAndReleaseEndIt) {
  Blocks net;
  auto amped = initialize(net, in_float8(level()));
  const Tensor x = at::randn({4, 32});
  {
    const disable_casts off;
    EXPECT_EQ(products_of([&] { amped(x); }), 0);
  }
  EXPECT_EQ(products_of([&] { amped(x); }), 2);
  release(amped);
  EXPECT_EQ(products_of([&] { net->forward(x); }), 0);
}

TEST_P(Float8, StepsAreSeenAndOverflowsNameTheProduct) {
  Blocks net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] =
      initialize(net, sgd, in_float8(level()).loss_scale("dynamic").verbosity(1));
  const Tensor x = at::randn({4, 32}), before = model(x).detach();
  scale_loss(model(x).pow(2).sum(), optimizer).backward();
  EXPECT_TRUE(optimizer.step());
  const Tensor after = model(x).detach();
  EXPECT_FALSE(at::equal(after, before));
  Tensor wrong = x.clone();
  wrong[0][0] = INFINITY;
  const Logged logged;
  optimizer.zero_grad();
  scale_loss(model(wrong).pow(2).sum(), optimizer).backward();
  EXPECT_FALSE(optimizer.step());
  EXPECT_NE(logged.text().find("loss 0 is not finite: float8: the input of ff.0 was not finite: "
                               "step skipped, loss scale now"),
            std::string::npos)
      << logged.text();
  EXPECT_TRUE(at::equal(model(x), after));
}

TEST_P(Float8, SecondDerivativesAreRefused) {
  Blocks net;
  auto amped = initialize(net, in_float8(level()));
  const Tensor x = activations(level(), {4, 32}).requires_grad_();
  const Tensor y = net->ff->forward(x).sum();
  EXPECT_EQ(message_of<c10::NotImplementedError>([&] {
              torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
            }),
            "linear: a product in float8 has no second derivative; compute it in "
            "amp.disable_casts()");
}

TEST(Float8Options, LevelsRefuseIt) {
  const auto refused = [](const Options& options) {
    return message_of([&] { options.resolve(); });
  };
  EXPECT_EQ(refused(Options("O0").float8()),
            "initialize: float8 cannot be set at opt_level O0: its products are in float32: use O4 "
            "or O5");
  for (const char* level : {"O1", "O2", "O3"}) {
    EXPECT_EQ(refused(Options(level).float8()),
              c10::str("initialize: float8 cannot be set at opt_level ", level,
                       ": float16 has 5 exponent bits, as e5m2 has: use O4 or O5"));
  }
  EXPECT_EQ(refused(Options("O5").float8().cast_model_type(at::kHalf)),
            "initialize: float8 cannot be set at opt_level O5: only products in bfloat16 are "
            "computed in it, and others are chosen");
  EXPECT_EQ(refused(Options("O1").float8().float8(false)), "no error");
}

TEST(Float8Options, WrongNamesChangeNothing) {
  Blocks net;
  const auto refused = [&](const Options& options) {
    return message_of<c10::ValueError>([&] { auto amped = initialize(net, options); });
  };
  EXPECT_EQ(message_of<c10::ValueError>([] { in_float8(OptLevel::O5, {}); }),
            "initialize: expected float8 to name modules, got no names");
  EXPECT_EQ(refused(Options("O5").float8({"ff", "f"}).verbosity(0)),
            "initialize: expected float8 to name modules in the model, got \"f\"");
  EXPECT_EQ(refused(Options("O4").float8({"head"}).verbosity(0)),
            "initialize: expected float8 to name modules with linears whose dimensions are "
            "multiples of 16, got \"head\" with \"head\" [5, 32]");
  EXPECT_EQ(refused(Options("O5").float8().verbosity(0)),
            "initialize: expected linears for float8, of 1024 by 1024 or more in multiples of 16, "
            "neither the last of a model nor shared with an embedding, got \"ff.0\" [48, 32], "
            "\"ff.1\" [32, 48], \"head\" [5, 32]; name the modules whose linears are to be in "
            "float8 at any size");
  EXPECT_EQ(net->head->weight.scalar_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Float8Options, TrueTakesLargeLinears) {
  struct LargeImpl : torch::nn::Module {
    LargeImpl() {
      words = register_module("words", torch::nn::Embedding(1040, 1024));
      up = register_module("up", Linear(LinearOptions(1024, 1024).bias(false)));
      head = register_module("head", Linear(LinearOptions(1024, 1024).bias(false)));
    }
    Tensor forward(const Tensor& ids) { return head(up(words(ids))); }
    torch::nn::Embedding words{nullptr};
    Linear up{nullptr}, head{nullptr};
  };
  TORCH_MODULE(Large);
  Large net;
  const Logged logged;
  auto amped = initialize(net, Options("O5").float8());
  EXPECT_NE(logged.text().find("float8: 1 of 3 linears, 1.05 M of 3.16 M parameters; not: words "
                               "(embedding), head (last)"),
            std::string::npos)
      << logged.text();
  EXPECT_EQ(products_of([&] { amped(at::zeros({2}, at::kLong)); }), 1);
}

/// The CPU computes more than a card does: what a card refuses is refused there, too.
TEST(Float8Products, FollowTheRulesOfACard) {
  const auto matrix = [](int64_t rows, int64_t columns, at::ScalarType dtype) {
    return at::zeros({rows, columns}).to(dtype);
  };
  const auto e4m3 = at::kFloat8_e4m3fn, e5m2 = at::kFloat8_e5m2;
  const Tensor scale = at::ones({});
  const auto refused = [&](const Tensor& left, const Tensor& right, at::ScalarType dtype,
                           const std::optional<Tensor>& bias = {}) {
    return message_of([&] { float8::product({left, scale}, {right, scale}, dtype, bias); });
  };
  EXPECT_EQ(refused(matrix(5, 16, e4m3), matrix(32, 16, e4m3), at::kBFloat16), "no error");
  EXPECT_EQ(refused(matrix(16, 16, e5m2), matrix(16, 16, e4m3), at::kFloat), "no error");
  EXPECT_EQ(refused(matrix(16, 16, e5m2), matrix(16, 16, e5m2), at::kFloat),
            "product: expected one of the matrices in Float8_e4m3fn, got two in Float8_e5m2");
  EXPECT_EQ(refused(matrix(16, 24, e4m3), matrix(16, 24, e4m3), at::kFloat),
            "product: expected K and N in multiples of 16, got 24 and 16");
  EXPECT_EQ(refused(matrix(16, 16, e4m3), matrix(5, 16, e4m3), at::kFloat),
            "product: expected K and N in multiples of 16, got 16 and 5");
  EXPECT_EQ(refused(matrix(16, 32, e4m3), matrix(32, 16, e4m3).t(), at::kFloat),
            "product: expected float8 matrices in rows of one length, got Float8_e4m3fn [16, 32] "
            "and Float8_e4m3fn [16, 32]");
  EXPECT_EQ(refused(matrix(16, 16, e4m3), matrix(16, 16, e4m3), at::kFloat, at::zeros({16})),
            "product: expected no bias with a result in Float, got one");
}

}  // namespace
}  // namespace torchamp

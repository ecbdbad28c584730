// Linears in float8 in LibTorch, by the products that they compute.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torchamp/autocast.h>
#include <torchamp/detail/graphed.h>
#include <torchamp/functions.h>
#include <torchamp/optim/adam.h>

#include <cmath>
#include <thread>

#include "checkpoints.h"
#include "errors.h"
#include "float8/choice.h"
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

template <class Function>
int64_t casts_of(const Function& function) {
  const int64_t before = float8::counts().casts;
  function();
  return float8::counts().casts - before;
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
  for (const bool bias : {true, false}) {
    torch::nn::Sequential one(Linear(LinearOptions(64, 32).bias(bias)));
    auto amped = initialize(one, in_float8(level(), {"0"}));
    auto* const layer = one[0]->as<Linear>();
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{64}, {3, 64}, {2, 3, 64}}) {
      const Tensor x = activations(level(), sizes).requires_grad_();
      Tensor y;
      EXPECT_EQ(products_of([&] { y = layer->forward(x); }), 1);
      EXPECT_EQ(products_of([&] { y.sum().backward(); }), 2);
      EXPECT_EQ(y.dim(), x.dim());
      EXPECT_EQ(x.grad().sizes(), x.sizes());
      EXPECT_EQ(products_of([&] { y = at::linear(x, layer->weight.detach()); }), 1);
      EXPECT_EQ(y.dim(), x.dim());
      EXPECT_EQ(products_of([&] { y = amped(x.detach()); }), 1);
      EXPECT_EQ(y.scalar_type(), at::kFloat);
    }
    const Tensor x = activations(level(), {3, 64}), &weight = layer->weight;
    EXPECT_EQ(products_of([&] { torch::nn::functional::linear(x, weight); }), 1);
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

/// A product's operands, and the grad of its output.
struct Given {
  Tensor x, weight, grad;

  void scale(double factor) { *this = {x * factor, weight * factor, grad * factor}; }
  Tensor by_token() const { return grad.narrow(1, 0, 1); }
};

/// What is made of Gaussian ones [M, K], [N, K] and [M, N], as in test_float8_products.py.
const std::pair<const char*, void (*)(Given&)> kDistributions[] = {
    {"Gaussian", [](Given&) {}},
    {"tiny", [](Given& t) { t.scale(0x1p-40); }},
    {"huge", [](Given& t) { t.scale(0x1p40); }},
    {"uniform",
     [](Given& t) {
       t = {t.x.erf(), t.weight.erf(), t.grad.erf()};
     }},
    {"RMS-normed", [](Given& t) { t.x.div_(t.x.pow(2).mean({1}, true).sqrt()); }},
    {"GELU", [](Given& t) { t.x = at::gelu(t.x); }},
    {"SwiGLU", [](Given& t) { t.x = at::silu(t.x).mul(at::randn_like(t.x)); }},
    {"ReLU squared", [](Given& t) { t.x.relu_().square_(); }},
    {"channels 1000 times the others",
     [](Given& t) {
       t.x.narrow(1, 0, 2).mul_(1000);
       t.weight.narrow(1, 0, 2).div_(1000);
     }},
    {"grads log-normal by number", [](Given& t) { t.grad.mul_(at::randn_like(t.grad).exp()); }},
    {"grads log-normal by token",
     [](Given& t) { t.grad.mul_(at::randn_like(t.by_token()).exp()); }},
    {"grads of 40 octaves by number",
     [](Given& t) { t.grad.mul_((at::rand_like(t.grad) * 40).exp2()); }},
    {"grads of 40 octaves by token",
     [](Given& t) { t.grad.mul_((at::rand_like(t.by_token()) * 40).exp2()); }}};

TEST_P(Float8, ErrorsAreWithinTheBoundsOfTheDocs) {
  constexpr int64_t kShapes[][3] = {
      {256, 256, 512}, {512, 32, 16}, {61, 512, 1008}, {128, 64, 4096}};
  for (const auto& [title, change] : kDistributions) {
    for (const auto& [m, n, k] : kShapes) {
      SCOPED_TRACE(c10::str(title, ": ", m, ", ", n, ", ", k));
      Given given{at::randn({m, k}), at::randn({n, k}), at::randn({m, n})};
      change(given);
      const auto rounded = [](const Tensor& t) { return t.to(at::kBFloat16).to(at::kDouble); };
      const Tensor right_x = rounded(given.x), weight = rounded(given.weight);
      const Tensor grad = rounded(given.grad);
      torch::nn::Sequential one(Linear(LinearOptions(k, n).bias(false)));
      auto amped = initialize(one, in_float8(level(), {"0"}));
      auto* const layer = one[0]->as<Linear>();
      layer->weight.set_data(weight.to(layer->weight.scalar_type()));
      const Tensor x = right_x.to(activations(level(), {}).scalar_type()).requires_grad_();
      const Tensor y = layer->forward(x);
      y.backward(grad.to(y.scalar_type()));
      EXPECT_LT(relative_error(y.detach(), right_x.mm(weight.t())), 0.045);
      EXPECT_LT(relative_error(x.grad(), grad.mm(weight)), 0.07);
      EXPECT_LT(relative_error(layer->weight.grad(), grad.t().mm(right_x)), 0.07);
    }
  }
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

TEST(Float8AtO4, HalfFunctionsGetCastCopiesOfWeights) {
  Blocks net;
  auto amped = initialize(net, in_float8(OptLevel::O4));
  const Tensor x = at::randn({4, 32}), &weight = net->ff[0]->as<Linear>()->weight;
  const auto call = [](const Tensor& a, const Tensor& b) { return at::linear(a, b); };
  EXPECT_EQ(products_of([&] { call(x, weight); }), 1);
  EXPECT_EQ(products_of([&] { half_function(call)(x, weight); }), 0);
}

TEST_P(Float8, ScopesAndReleaseEndIt) {
  Blocks net;
  auto amped = initialize(net, in_float8(level()));
  const Tensor x = at::randn({4, 32});
  {
    const disable_casts off;
    EXPECT_EQ(products_of([&] { amped(x); }), 0);
    const autocast casts(at::kCPU, at::kBFloat16);
    EXPECT_EQ(products_of([&] { amped(x); }), 0);
  }
  {
    const autocast casts(at::kCPU, at::kBFloat16);
    EXPECT_EQ(products_of([&] { amped(x); }), 2);
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

/// Blocks in training by Adam.
struct Trained {
  explicit Trained(const Options& options)
      : adam(net->parameters(), 0.01), amped(initialize(net, adam, options)) {}

  Tensor step(const Tensor& x) {
    amped.optimizer.zero_grad();
    const Tensor loss = amped.model(x).pow(2).sum();
    scale_loss(loss, amped.optimizer).backward();
    amped.optimizer.step();
    return loss.detach();
  }
  std::vector<Tensor> weights() { return amped.optimizer.master_params(); }

  Blocks net;
  optim::FusedAdam adam;
  Amped<Blocks> amped;
};

TEST_P(Float8, AResumedRunTakesTheSameStepsAndFilesDoNotKnowOfFloat8) {
  Trained run(in_float8(level())), resumed(in_float8(level())), plain(quiet(level()));
  const Tensor x = at::randn({4, 32});
  const File file;
  run.step(x);
  save(run.amped, file.path());
  run.step(x);
  load(resumed.amped, file.path());
  resumed.step(x);
  EXPECT_TRUE(same_bits(resumed.weights(), run.weights()));
  load(plain.amped, file.path());
  plain.step(x);
  EXPECT_FALSE(same_bits(plain.weights(), run.weights()));
  save(plain.amped, file.path());
  load(run.amped, file.path());
  EXPECT_TRUE(same_bits(plain.weights(), run.weights()));
}

/// In place of a graph: it halves the weights, and nothing tells the host.
struct Halving : detail::DeviceGraph {
  explicit Halving(Blocks net) : net(std::move(net)) {}
  void begin_capture() override {}
  void end_capture() override {}
  void replay() override {
    for (const Tensor& param : net->parameters()) param.variable_data().mul_(0.5);
  }

  Blocks net;
};

TEST_P(Float8, AGraphHasTheCastsOfWeightsAndWhatReplaysWriteIsSeen) {
  Trained run(in_float8(level()));
  detail::Graphed<std::function<Tensor(const Tensor&)>> graphed(
      [&](const Tensor& x) { return run.step(x); },
      {at::kCPU, [&] { return std::make_unique<Halving>(run.net); }}, /*max_graphs=*/1);
  const Tensor x = at::randn({4, 32});
  for (int i = 0; i < 3; ++i) graphed(x);
  run.amped.model(x);  // leaves copies
  EXPECT_EQ(casts_of([&] { graphed(x); }), 2 + 2 + 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(casts_of([&] { run.amped.model(x); }), 2 + 2);
    graphed(x);
  }
}

TEST(Float8Options, TakesNoEmptyList) {
  EXPECT_EQ(message_of<c10::ValueError>([] { in_float8(OptLevel::O5, {}); }),
            "initialize: expected float8 to name modules, got no names");
  EXPECT_EQ(message_of([] { Options("O1").float8().float8(false).resolve(); }), "no error");
}

TEST(Float8Options, DevicesWithoutFloat8AreRefused) {
  const auto refused = [](at::Device device, int capability) {
    return message_of([&] { float8::check_device("0.weight", device, capability); });
  };
  const std::string start =
      "initialize: expected the linears of float8 on the CPU or a CUDA device of compute "
      "capability 8.9 or newer, got \"0.weight\" on ";
  EXPECT_EQ(refused({at::kCUDA, 1}, 86), start + "cuda:1, of 8.6");
  EXPECT_EQ(refused(at::kXPU, 0), start + "xpu");
  EXPECT_EQ(refused(at::kCPU, 0), "no error");
  for (const int capability : {0, 89, 90, 120}) {
    EXPECT_EQ(refused({at::kCUDA, 0}, capability), "no error");
  }
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

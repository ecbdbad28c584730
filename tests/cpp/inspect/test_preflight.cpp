#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>
#include <torch/library.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torchamp/preflight.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "autocast/open_autocast.h"
#include "device.h"
#include "errors.h"
#include "float8/product.h"
#include "inspect/linears.h"

namespace torchamp {
namespace {

using at::Tensor;
using Function = std::function<Tensor(const Tensor&)>;

/// A linear layer, and an op after it.
struct WithOp : torch::nn::Module {
  explicit WithOp(Function op) : op_(std::move(op)) {
    linear = register_module("linear", torch::nn::Linear(8, 8));
  }

  Tensor forward(const Tensor& x) {
    const Tensor y = linear->forward(x);
    RECORD_USER_SCOPE("op");
    return op_(y);
  }

  torch::nn::Linear linear = nullptr;

 private:
  Function op_;
};

/// A linear layer, and a little of the cosines of angles: a buffer's or an input's.
struct WithAngles : torch::nn::Module {
  struct Angles {
    Tensor values;
  };

  WithAngles() {
    linear = register_module("linear", torch::nn::Linear(8, 8));
    angles = register_buffer("angles", at::linspace(5000, 5010, 8));
  }

  Tensor forward(const Tensor& x) { return forward(x, angles); }
  Tensor forward(const Tensor& x, const Tensor& given) {
    RECORD_USER_SCOPE("angles");
    return linear->forward(x) + (given.cos() * 0.01).to(x.scalar_type());
  }
  Tensor forward(const Tensor& x, const Angles& given) { return forward(x, given.values); }

  torch::nn::Linear linear = nullptr;
  Tensor angles;
};

/// A linear layer that counts its calls in a buffer.
struct Counting : torch::nn::Module {
  Counting() {
    linear = register_module("linear", torch::nn::Linear(8, 8));
    count = register_buffer("count", at::zeros({}));
  }

  Tensor forward(const Tensor& x) {
    count.add_(1);
    return linear->forward(x);
  }

  torch::nn::Linear linear = nullptr;
  Tensor count;
};

using Dropout = std::tuple<Tensor, Tensor>(const Tensor&, double, std::optional<bool>);

/// Draws another mask for 16-bit tensors, as CUDA's dropout does.
std::tuple<Tensor, Tensor> dropout_by_dtype(const Tensor& x, double p, std::optional<bool>) {
  const Tensor drawn = at::rand(x.sizes()).ge(p);
  const Tensor mask = x.element_size() == 2 ? drawn.logical_not() : drawn;
  return {x * mask / (1 - p), mask};
}

/// Never draws the same mask again, as CUDA's fused attention.
std::tuple<Tensor, Tensor> dropout_of_its_own(const Tensor& x, double p, std::optional<bool>) {
  static const at::Generator generator = at::detail::createCPUGenerator();
  const Tensor mask = at::rand(x.sizes(), generator).ge(p);
  return {x * mask / (1 - p), mask};
}

/// Makes `dropout` the CPU's, which is the simulated card's too.
torch::Library with_dropout(Dropout* dropout) {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("native_dropout", dropout);
  return library;
}

class PreflightTest : public DeviceTest {
 protected:
  static Tensor ones() { return at::ones({4, 8}, at::TensorOptions(device())); }

  static std::shared_ptr<WithOp> net_with(Function op) {
    auto net = std::make_shared<WithOp>(std::move(op));
    const at::NoGradGuard no_grad;
    net->linear->weight.fill_(0.125);
    net->linear->bias.fill_(0.5);
    net->to(device());
    return net;
  }

  static Preflight preflight_of(const Function& op) {
    return preflight(net_with(op), [](const auto& model) { return model(ones()).mean(); });
  }

  static void expect_every_level_fits(const Preflight& found) {
    for (const auto& verdict : found.verdicts) {
      EXPECT_TRUE(verdict.fits) << name(verdict.level) << ": " << verdict.reason;
    }
  }
};

TEST_P(PreflightTest, AHealthyModelFitsEveryLevel) {
  torch::nn::Sequential net(torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 16), torch::nn::ReLU(),
                            torch::nn::Dropout(0.5), torch::nn::Linear(16, 1));
  net->to(device());
  const Tensor x = at::rand({64, 8}, device());
  const Preflight found =
      preflight(net, [&x](const auto& model) { return model(x).square().mean(); });
  ASSERT_EQ(found.verdicts.size(), 5U);
  expect_every_level_fits(found);
  for (const auto& verdict : found.verdicts) {
    EXPECT_LT(*verdict.loss_error, 0.02);
    EXPECT_EQ(verdict.loss_scale.has_value(), verdict.level < OptLevel::O4);
  }
  EXPECT_TRUE(found.notes.empty());
}

TEST_P(PreflightTest, DrawsOneMaskWhereItDependsOnTheDtype) {
  const torch::Library library = with_dropout(&dropout_by_dtype);
  const Preflight found = preflight_of(
      [](const Tensor& y) { return std::get<0>(at::native_dropout(y, 0.5, true)).square(); });
  expect_every_level_fits(found);
  EXPECT_TRUE(found.notes.empty());
}

TEST_P(PreflightTest, LeavesOutDropoutThatDrawsAMaskOfItsOwn) {
  if (!device().is_cuda()) GTEST_SKIP() << "the CPU has no such kernel";
  const torch::Library library = with_dropout(&dropout_of_its_own);
  const Function attention = [](const Tensor& y) {
    const Tensor x = y.view({1, 1, 4, 8});
    return at::scaled_dot_product_attention(x, x, x, {}, 0.5);
  };
  const Function recurrent = [](const Tensor& y) {
    const Tensor weight = at::eye(8, y.options());
    return std::get<0>(at::rnn_tanh(y.unsqueeze(0), at::zeros({2, 4, 8}, y.options()),
                                    {weight, weight, weight, weight}, /*has_biases=*/false,
                                    /*num_layers=*/2, /*dropout=*/0.5, /*train=*/true,
                                    /*bidirectional=*/false, /*batch_first=*/false));
  };
  for (const Function& op : {attention, recurrent}) {
    const Preflight found = preflight_of(op);
    expect_every_level_fits(found);
    ASSERT_EQ(found.notes.size(), 1U);
    EXPECT_EQ(found.notes[0].rfind("The dropout of scaled_dot_product_attention and of recu", 0),
              0U);
  }
}

TEST_P(PreflightTest, NamesAnOverflowOfTheForward) {
  const Preflight found = preflight_of([](const Tensor& y) { return y * 60000.0; });
  for (const auto level : {OptLevel::O2, OptLevel::O3}) {
    EXPECT_FALSE(found.verdict(level).fits);
    EXPECT_NE(found.verdict(level).reason.find("mul of \"op\" in the forward makes inf"),
              std::string::npos)
        << found.verdict(level).reason;
  }
  EXPECT_TRUE(found.verdict(OptLevel::O4).fits);
}

TEST_P(PreflightTest, NamesGradsThatFloat16Loses) {
  const Preflight found = preflight_of([](const Tensor& y) { return y * 1e-20; });
  EXPECT_FALSE(found.verdict(OptLevel::O2).fits);
  EXPECT_NE(found.verdict(OptLevel::O2).reason.find("underflow: all grads of 'linear."),
            std::string::npos)
      << found.verdict(OptLevel::O2).reason;
  EXPECT_TRUE(found.verdict(OptLevel::O5).fits) << found.verdict(OptLevel::O5).reason;
}

TEST_P(PreflightTest, NamesAMaskThatFloat16CannotHold) {
  const Preflight found = preflight_of([](const Tensor& y) {
    const Tensor mask = at::eye(4, 8, y.options().dtype(at::kBool));
    return y.masked_fill(mask, -1e9).softmax(-1) * y;
  });
  const auto& verdict = found.verdict(OptLevel::O2);
  EXPECT_FALSE(verdict.fits);
  EXPECT_NE(verdict.reason.find("masked_fill"), std::string::npos) << verdict.reason;
  EXPECT_NE(verdict.reason.find(" of \"op\" throws: "), std::string::npos) << verdict.reason;
}

TEST_P(PreflightTest, NamesAnOpThat16BitsDoNotHave) {
  const Preflight found = preflight_of([](const Tensor& y) {
    const Tensor square = y.t().matmul(y) + at::eye(8, y.options());
    return std::get<0>(at::linalg_cholesky_ex(square)).sum();
  });
  for (const auto level : {OptLevel::O2, OptLevel::O5}) {
    EXPECT_FALSE(found.verdict(level).fits);
    EXPECT_NE(found.verdict(level).reason.find("cholesky"), std::string::npos)
        << found.verdict(level).reason;
  }
}

constexpr OptLevel kCasting[] = {OptLevel::O2, OptLevel::O3, OptLevel::O5};

TEST_P(PreflightTest, NamesABufferThatMustNotBeRounded) {
  const auto net = std::make_shared<WithAngles>();
  net->to(device());
  const Tensor before = net->angles.clone();
  const Preflight found =
      preflight(net, [](const auto& model) { return model(ones()).square().mean(); });
  for (const auto level : kCasting) {
    EXPECT_FALSE(found.verdict(level).fits);
    EXPECT_EQ(found.verdict(level).reason,
              "precision: buffer 'angles' in 16 bits: cos of \"angles\" is off float32; "
              "Options::keep_fp32({\"angles\"}) avoids it");
  }
  EXPECT_TRUE(found.verdict(OptLevel::O4).fits) << found.verdict(OptLevel::O4).reason;
  EXPECT_TRUE(at::equal(net->angles, before));
  const Tensor expected = net->forward(ones());
  const auto model =
      initialize(net, Options("O5").keep_fp32({"angles"}).cast_model_outputs(at::kFloat));
  EXPECT_TRUE(at::allclose(model(ones()), expected, 0.01, 0.01));
  EXPECT_EQ(net->angles.scalar_type(), at::kFloat);
}

TEST_P(PreflightTest, NamesInputsThatMustNotBeRounded) {
  const auto net = std::make_shared<WithAngles>();
  net->to(device());
  const Tensor angles = net->angles.clone();
  net->angles.zero_();
  const Preflight found =
      preflight(net, [&](const auto& model) { return model(ones(), angles).square().mean(); });
  for (const auto level : kCasting) {
    EXPECT_EQ(found.verdict(level).reason,
              "precision: the inputs in 16 bits: cos of \"angles\" is off float32; integers, and "
              "members of a struct without amp_members, are not cast");
  }
  const Preflight kept = preflight(net, [&](const auto& model) {
    return model(ones(), WithAngles::Angles{angles}).square().mean();
  });
  for (const auto level : kCasting) {
    EXPECT_TRUE(kept.verdict(level).fits) << kept.verdict(level).reason;
  }
}

TEST_P(PreflightTest, NoLevelFitsThatRoundsABufferThatTheForwardWrites) {
  const auto net = std::make_shared<Counting>();
  net->to(device());
  const Preflight found =
      preflight(net, [](const auto& model) { return model(ones()).square().mean(); });
  for (const auto level : kCasting) {
    EXPECT_FALSE(found.verdict(level).fits);
    EXPECT_EQ(found.verdict(level).reason,
              "precision: buffer 'count' in 16 bits: what the forward adds up there stops early; "
              "Options::keep_fp32({\"count\"}) avoids it");
  }
  EXPECT_TRUE(found.verdict(OptLevel::O1).fits);
  EXPECT_TRUE(found.verdict(OptLevel::O4).fits);
  EXPECT_EQ(net->count.item<float>(), 0);
}

TEST_P(PreflightTest, LeavesEverythingAsItWas) {
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(8),
                            torch::nn::Dropout(0.5), torch::nn::Linear(8, 1024),
                            torch::nn::Linear(1024, 1024), torch::nn::Linear(1024, 1));
  net->to(device());
  (*net)[0]->parameters()[0].mutable_grad() = at::ones({8, 8}, device());
  std::vector<Tensor> before;
  for (const auto& tensor : net->parameters()) before.push_back(tensor.detach().clone());
  for (const auto& tensor : net->buffers()) before.push_back(tensor.clone());
  const void* const memory = net->parameters()[0].const_data_ptr();
  at::manual_seed(3);
  const Tensor expected = at::rand({3}, device());
  at::manual_seed(3);
  const auto loss_of = [](const auto& model) { return model(ones()).square().sum(); };
  ASSERT_EQ(preflight(net, loss_of).notes.size(), 1);  // on float8
  EXPECT_TRUE(at::equal(at::rand({3}, device()), expected));
  std::vector<Tensor> after = net->parameters();
  for (const auto& tensor : net->buffers()) after.push_back(tensor);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].scalar_type(), before[i].scalar_type());
    EXPECT_TRUE(at::equal(after[i].detach(), before[i]));
  }
  EXPECT_EQ(net->parameters()[0].const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(net->parameters()[0].grad(), at::ones({8, 8}, device())));
  EXPECT_FALSE(net->parameters()[1].grad().defined());
  EXPECT_FALSE(casting_to(device().type()));
}

TEST_P(PreflightTest, LowersTheLossScaleUntilNoGradOverflows) {
  const Preflight found = preflight_of([](const Tensor& y) { return y * 512.0; });
  EXPECT_EQ(found.verdict(OptLevel::O2).loss_scale, 256);  // the largest grads are 64 each
  EXPECT_TRUE(found.verdict(OptLevel::O2).fits) << found.verdict(OptLevel::O2).reason;
}

TEST_P(PreflightTest, RefusesWhatItCannotJudge) {
  const auto error_of = [](const Function& op) { return message_of([&op] { preflight_of(op); }); };
  EXPECT_EQ(error_of([](const Tensor& y) {
              return y * INFINITY;
            }).rfind("preflight: expected a finite iteration in float32, got a loss of inf", 0),
            0U);
  EXPECT_NE(error_of([](const Tensor& y) { return y.detach(); }).find("grad_fn"),
            std::string::npos);
  const auto net = net_with([](const Tensor& y) { return y; });
  const auto loss_of = [](const auto& model) { return model(ones()).mean(); };
  {
    auto model = initialize(net, Options("O1").verbosity(0));
    EXPECT_NE(message_of([&] { preflight(net, loss_of); }).find("expected no casts"),
              std::string::npos);
    release(model);
  }
  net->to(at::kHalf);
  EXPECT_NE(message_of([&] { preflight(net, loss_of); }).find("expected float32 parameters"),
            std::string::npos);
  net->to(at::kFloat);
  for (auto& param : net->parameters()) param.requires_grad_(false);
  EXPECT_NE(message_of([&] { preflight(net, loss_of); }).find("requires grad"), std::string::npos);
}

TEST_P(PreflightTest, TakesAModuleByReferenceAndTellsACapturedOne) {
  auto net = *net_with([](const Tensor& y) { return y; });
  const Preflight called = preflight(net, [](const auto& model) { return model(ones()).mean(); });
  EXPECT_TRUE(called.notes.empty());
  const Preflight captured =
      preflight(net, [&](const auto&) { return net.forward(ones()).mean(); });
  EXPECT_EQ(captured.notes,
            std::vector<std::string>{
                "loss_of did not call the model that it was given. A net that it captures gets its "
                "inputs uncast: call the argument."});
}

TEST_P(PreflightTest, Prints) {
  std::ostringstream stream;
  stream << preflight_of([](const Tensor& y) { return y * 60000.0; });
  const std::string text = stream.str();
  EXPECT_TRUE(
      std::regex_search(text, std::regex("\nO4     yes   [0-9.e+]+ +relative error: loss ")))
      << text;
  const std::regex advice(
      "\n\n(Recommended: O[1245]\\.|No level is faster here by more than 10 %: take O0, which is "
      "float32\\.) An iteration takes [0-9.e+]+ ms at O[1245], in float32 [0-9.e+]+ ms\\.$");
  EXPECT_TRUE(std::regex_search(text, advice)) << text;
}

TEST_P(PreflightTest, TimesIterations) {
  using namespace std::chrono_literals;
  const Preflight found = preflight_of([](const Tensor& y) {
    if (y.scalar_type() == at::kBFloat16) std::this_thread::sleep_for(20ms);
    return y * 2;
  });
  EXPECT_GE(found.verdict(OptLevel::O5).milliseconds.value(), 20);
  EXPECT_LT(found.milliseconds.value(), *found.verdict(OptLevel::O5).milliseconds);
}

/// What is printed of a level that is recommended, where O1 takes 12 ms.
std::string advice_of(OptLevel recommended, double in_float32, double at_o4, double at_o5) {
  Preflight found;
  found.recommended = recommended;
  found.milliseconds = in_float32;
  for (const auto& [level, taken] :
       {std::pair(OptLevel::O1, 12.), std::pair(OptLevel::O3, .5), std::pair(OptLevel::O4, at_o4),
        std::pair(OptLevel::O5, at_o5)}) {
    found.verdicts.push_back({level, true, "", {}, {}, {}, taken});
  }
  std::ostringstream stream;
  stream << found;
  return stream.str().substr(stream.str().find("\n\n") + 2);
}

TEST_P(PreflightTest, PrintsTheTimesOfTheRecommendedLevelOrOfTheFastest) {
  EXPECT_EQ(advice_of(OptLevel::O4, 9, 4.25, 3),
            "Recommended: O4. An iteration takes 4.25 ms at O4, in float32 9 ms.");
  EXPECT_EQ(advice_of(OptLevel::O0, 3, 2.8, 2.75),
            "No level is faster here by more than 10 %: take O0, which is float32. An iteration "
            "takes 2.75 ms at O5, in float32 3 ms.");
}

TEST_P(PreflightTest, RecommendsALevelThatIsFasterThanFloat32) {
  using namespace std::chrono_literals;
  for (const bool is_float32_slow : {false, true}) {
    const Preflight found = preflight_of([&](const Tensor& y) {
      if ((y.scalar_type() == at::kFloat) == is_float32_slow) std::this_thread::sleep_for(20ms);
      return y * 2;
    });
    EXPECT_EQ(found.recommended, is_float32_slow ? OptLevel::O4 : OptLevel::O0) << found;
  }
}

TEST_P(PreflightTest, DoesNotTimeWhatThrowsInASecondIteration) {
  int calls = 0;
  std::ostringstream stream;
  const Preflight found = preflight_of([&calls](const Tensor& y) {
    TORCH_CHECK(++calls != 2, "the graph was freed");
    return y * 2;
  });
  EXPECT_FALSE(found.milliseconds);
  stream << found;
  EXPECT_NE(stream.str().find("\n\nRecommended: O4."), std::string::npos) << stream.str();
  EXPECT_EQ(stream.str().find("An iteration"), std::string::npos) << stream.str();
}

TEST_P(PreflightTest, ANoteSaysWhetherFloat8FitsAndPays) {
  for (const int64_t width : {1024, 1008}) {
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Linear(4, width), torch::nn::Linear(width, 1024),
                              torch::nn::Linear(1024, 1));
    net->to(device());
    const Tensor x = torch::randn({8, 4}, at::TensorOptions().device(device()));
    const int64_t before = float8::counts().products;
    const Preflight found =
        preflight(net, [&](const auto& model) { return model(x).pow(2).mean(); });
    const int64_t products = float8::counts().products - before;
    const std::string start = "float8() at O5 fits: relative error: loss ";
    if (width == 1008) {
      EXPECT_TRUE(found.notes.empty()) << found;
      EXPECT_EQ(products, 0);
      continue;
    }
    ASSERT_EQ(found.notes.size(), 1) << found;
    const std::string& note = found.notes[0];
    EXPECT_EQ(note.substr(0, start.size()), start);
    EXPECT_NE(note.find(". An iteration takes "), std::string::npos) << note;
    EXPECT_GT(products, 4 * 3) << "more than four iterations: also those of a linear by itself";
  }
}

/// Linears of five shapes. Those of few and of attention.out_proj differ in rows alone.
struct Wide : torch::nn::Module {
  static torch::nn::Linear linear(int64_t inputs, int64_t outputs) {
    return torch::nn::Linear(inputs, outputs);
  }

  Tensor forward(Tensor x) {
    x = first(x).unsqueeze(1);
    x = std::get<0>(attention(x, x, x, Tensor(), /*need_weights=*/false)).squeeze(1);
    x = down(up(x).relu() * gate(x));
    return last(x + few(x.slice(0, 0, 2))[0]);
  }

  torch::nn::Linear first = register_module("first", linear(4, 1024));
  torch::nn::MultiheadAttention attention =
      register_module("attention", torch::nn::MultiheadAttention(1024, 8));
  torch::nn::Linear up = register_module("up", linear(1024, 2048));
  torch::nn::Linear gate = register_module("gate", linear(1024, 2048));
  torch::nn::Linear few = register_module("few", linear(1024, 1024));
  torch::nn::Linear down = register_module("down", linear(2048, 1024));
  torch::nn::Linear last = register_module("last", linear(1024, 3));
};

/// Rows, inputs and outputs.
using Shape = std::tuple<int64_t, int64_t, int64_t>;

TEST_P(PreflightTest, NamesLinearsThatAreSlowerInFloat8) {
  const Shape in{16, 1024, 3072}, out{16, 1024, 1024}, wide{16, 1024, 2048}, few{2, 1024, 1024},
      narrow{16, 2048, 1024};
  const auto net = std::make_shared<Wide>();
  net->to(device());
  const Tensor x = torch::randn({16, 4}, at::TensorOptions().device(device()));
  const inspect::Initialize at_level = [&](const Options& options) {
    const auto model = initialize(net, options);
    return detail::ModelAtLevel{model.amp(), [&x, model] { return model(x).mean(); }};
  };
  const std::string start = " Slower in float8, each by itself: ";
  const std::vector<std::pair<std::set<Shape>, std::string>> expected{
      {{}, ""},
      {{narrow},
       start + "down. float8({\"attention\", \"attention.out_proj\", \"up\", \"gate\", "
               "\"few\"}) takes the others."},
      {{few, narrow, wide},
       start + "up, gate, few and 1 more. float8({\"attention\", "
               "\"attention.out_proj\"}) takes the others."},
      {{out},
       start + "attention.out_proj. float8({\"up\", \"gate\", \"few\", \"down\"}) takes the "
               "others."},
      {{out, wide, few, narrow}, start + "attention.out_proj, up, gate and 2 more."},
      {{in},
       start + "attention.in_proj_weight. float8({\"attention.out_proj\", \"up\", \"gate\", "
               "\"few\", \"down\"}) takes the others."},
      {{in, out, wide, few, narrow}, " Each linear by itself is slower in float8."}};
  for (const auto& [losing, text] : expected) {
    std::vector<std::pair<Shape, bool>> asked;
    const auto time = [&, &slow = losing](const Tensor& weight, int64_t rows,
                                          const Options& options) -> std::optional<double> {
      asked.emplace_back(Shape{rows, weight.size(1), weight.size(0)}, options.float8().has_value());
      return asked.back().second && slow.count(asked.back().first) == 0 ? 1 : 2;
    };
    EXPECT_EQ(inspect::losing_linears(*net, at_level, time), text);
    std::vector<std::pair<Shape, bool>> all;
    for (const Shape& shape : {in, out, wide, few, narrow}) {
      all.insert(all.end(), {{shape, false}, {shape, true}});
    }
    EXPECT_EQ(asked, all);
  }
}

TEST_P(PreflightTest, TimesOneLinearAndCastsItEachTime) {
  const Tensor weight = at::zeros({16, 32}, device());
  EXPECT_GT(inspect::time_linear(weight, 16, Options("O5")).value(), 0);
  const auto before = float8::counts();
  EXPECT_GT(inspect::time_linear(weight, 16, Options("O5").float8({"0"})).value(), 0);
  const auto now = float8::counts();
  EXPECT_EQ(now.products - before.products, 9);  // of three iterations
  EXPECT_EQ(now.casts - before.casts, 9);
}

TORCHAMP_ON_EACH_DEVICE(PreflightTest);

}  // namespace
}  // namespace torchamp

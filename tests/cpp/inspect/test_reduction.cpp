#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <torch/library.h>
#include <torch/nn/modules/linear.h>
#include <torchamp/overflow_trace.h>
#include <torchamp/preflight.h>

#include <functional>
#include <sstream>
#include <string>

#include "device.h"

namespace torchamp {
namespace {

using at::Scalar;
using at::Tensor;

const char kRemedy[] =
    "; float32 sums avoid it: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = "
    "False, in C++ at::globalContext().setAllowFP16ReductionCuBLAS(false)";

/// The products in float32 so far.
int float32_products = 0;

/// The product as the sum of two halves, each of which is rounded to the dtype.
Tensor summed_in_halves(const Tensor& a, const Tensor& b) {
  const at::RecordFunctionGuard unobserved(false);
  if (a.scalar_type() == at::kFloat) ++float32_products;
  const Tensor products = a.unsqueeze(-1).to(at::kFloat) * b.unsqueeze(-3).to(at::kFloat);
  const auto halves = products.tensor_split(2, -2);
  return halves[0].sum(-2).to(a.scalar_type()) + halves[1].sum(-2).to(a.scalar_type());
}

Tensor added(const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  const at::RecordFunctionGuard unobserved(false);
  return c * beta + summed_in_halves(a, b) * alpha;
}

/// Products are summed in halves, as cuBLAS may sum them.
class ReductionTest : public DeviceTest {
 protected:
  ReductionTest() {
    for (const char* name : {"mm", "bmm"}) library_.impl(name, &summed_in_halves);
    for (const char* name : {"addmm", "baddbmm"}) library_.impl(name, &added);
    float32_products = 0;
  }
  ~ReductionTest() override { at::globalContext().setAllowFP16ReductionCuBLAS(true); }

  /// The first half of 300² · row overflows unless the row begins with 0.
  static Tensor row(float second) {
    return at::tensor({1.F, second}, device()).mul(300).to(at::kHalf).unsqueeze(0);
  }
  static Tensor column() { return at::full({2, 1}, 300, row(0).options()); }

  static OverflowOrigin origin_of(const std::function<void()>& product) {
    const OverflowTrace trace;
    product();
    return trace.origin().value_or(OverflowOrigin{});
  }

  static std::string text_of(const OverflowOrigin& origin) {
    std::ostringstream text;
    text << origin;
    return text.str();
  }

  static std::string reason_at_o1(const std::function<Tensor(const Tensor&)>& loss_of) {
    torch::nn::Linear net(2, 2);
    net->to(device());
    const auto found = preflight(net, [&](const auto& model) {
      const Tensor y = model(at::ones({1, 2}, device()));
      RECORD_USER_SCOPE("product");
      return loss_of(y.to(at::kFloat));
    });
    return found.verdict(OptLevel::O1).reason;
  }

 private:
  torch::Library library_{torch::Library::IMPL, "aten",
                          device().is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU,
                          __FILE__, __LINE__};
};

TEST_P(ReductionTest, NamesTheSwitchForEveryProduct) {
  const Tensor a = row(-0.5), b = column(), c = at::zeros({1, 1}, a.options());
  const std::pair<const char*, std::function<void()>> products[] = {
      {"mm", [&] { at::mm(a, b); }},
      {"mm", [&] { at::matmul(a, b); }},
      {"mm", [&] { at::linear(a, b.t()); }},
      {"addmm", [&] { at::addmm(c, a, b); }},
      {"addmm", [&] { at::linear(a, b.t(), c[0]); }},
      {"bmm", [&] { at::bmm(a.unsqueeze(0), b.unsqueeze(0)); }},
      {"baddbmm", [&] { at::baddbmm(c.unsqueeze(0), a.unsqueeze(0), b.unsqueeze(0)); }}};
  for (const auto& [op, product] : products) {
    float32_products = 0;
    EXPECT_EQ(text_of(origin_of(product)),
              c10::str(op, " in the forward makes inf in Half of inputs up to 300", kRemedy));
    EXPECT_EQ(float32_products, 1) << op;
  }
}

TEST_P(ReductionTest, ComputesFiniteProductsOnce) {
  const OverflowTrace trace;
  at::mm(row(-0.5) / 300, column());
  EXPECT_FALSE(trace.origin());
  EXPECT_EQ(float32_products, 0);
}

TEST_P(ReductionTest, LeavesOutWhatFloat16DoesNotHold) {
  const OverflowOrigin origin = origin_of([] { at::mm(row(0), column()); });
  EXPECT_EQ(text_of(origin), "mm in the forward makes inf in Half of inputs up to 300");
  EXPECT_EQ(float32_products, 1);
}

TEST_P(ReductionTest, ComputesProductsInFloat32Once) {
  const Tensor huge = at::full({1, 1}, 1e30, device());
  EXPECT_EQ(text_of(origin_of([&] { at::mm(huge, huge); })),
            "mm in the forward makes inf in Float of inputs up to 1e+30");
  EXPECT_EQ(float32_products, 1);
}

TEST_P(ReductionTest, LeavesOutWhatTheSwitchIsOffFor) {
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  EXPECT_FALSE(origin_of([] { at::mm(row(-0.5), column()); }).is_reduced);
  EXPECT_EQ(float32_products, 0);
}

TEST_P(ReductionTest, PreflightNamesTheSwitch) {
  const std::string forward = reason_at_o1([](const Tensor& y) {
    return at::mm(row(-0.5).to(at::kFloat), column().to(at::kFloat)).mean() + y.mean();
  });
  EXPECT_EQ(
      forward,
      c10::str("mm of \"product\" in the forward makes inf in Half of inputs up to 300", kRemedy));
  const std::string backward = reason_at_o1([](const Tensor& y) {
    return at::mm(y, row(-1).to(at::kFloat).expand({2, 2})).to(at::kFloat).sum() * 4e6;
  });
  EXPECT_EQ(backward,
            c10::str("mm of \"product\" in the backward makes nan in Half of inputs up to 3906, "
                     "at every loss scale down to 2**-10",
                     kRemedy));
}

TORCHAMP_ON_EACH_DEVICE(ReductionTest);

}  // namespace
}  // namespace torchamp

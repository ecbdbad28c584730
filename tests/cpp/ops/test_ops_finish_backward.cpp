// What the passes over a backward's grads report, on every backend.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "device.h"
#include "lists.h"
#include "math/report.h"
#include "ops/backward_report.h"
#include "ops/finish_backward.h"

namespace torchamp {
namespace {

using at::Tensor;

class FinishBackwardTest : public DeviceTest {
 protected:
  Tensor scalar(double value) const { return scalar_of(value, at::kFloat, device()); }

  /// Those of zeros of both signs.
  Tensor zeros(at::ScalarType dtype, int64_t count) const {
    const Tensor positive = at::zeros({count}, at::TensorOptions(dtype).device(device()));
    return at::cat({positive.slice(0, 0, count / 2), -positive.slice(0, count / 2)});
  }

  /// The outcome of a backward of `grads`, which are unscaled if `is_written`, else only checked.
  float outcome(const std::vector<Tensor>& grads, bool is_written, const Tensor& loss,
                bool wants_norm = false) {
    const auto count = static_cast<int64_t>(grads.size());
    const auto report = acquire_report(device());
    BackwardEnd end;
    end.found_inf = scalar(7);
    end.inv_scale = scalar(7);
    end.per_tensor = clear_flags(count, device());
    end.loss = loss;
    end.report = report->bytes();
    if (wants_norm) end.norm = scalar(7);
    if (!flags_.defined() || flags_.numel() != kFlagsHeader + count) {
      flags_ = make_overflow_flags(count, device());
    }
    std::vector<Tensor> masters(grads.size());
    for (size_t i = 0; is_written && i < grads.size(); ++i) {
      if (grads[i].defined()) masters[i] = at::empty_like(grads[i], at::kFloat);
    }
    pass_over_grads(grads, masters, scalar(1024), false, flags_, &end);
    EXPECT_FALSE(flags_.any().item<bool>()) << "cleared";
    return report->outcome();
  }

  /// The same of a loss of 1.
  float outcome(const std::vector<Tensor>& grads, bool is_written) {
    return outcome(grads, is_written, scalar(1));
  }

  Tensor flags_;
};

const std::vector<at::ScalarType> kGradTypes = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble};

TEST_P(FinishBackwardTest, FiniteGradsAreCleanWhateverTheLoss) {
  for (const auto dtype : kGradTypes) {
    const std::vector<Tensor> grads = {zeros(dtype, 5), Tensor(), zeros(dtype, 70001).add(1)};
    for (const bool is_written : {true, false}) {
      for (const Tensor& loss : {scalar(1), scalar(0), scalar(NAN), Tensor()}) {
        EXPECT_EQ(outcome(grads, is_written, loss), kClean) << dtype;
      }
    }
    EXPECT_EQ(outcome(grads, false, scalar(1), /*wants_norm=*/true), kClean);
  }
}

TEST_P(FinishBackwardTest, ValuesThatAreNotFiniteAreAnOverflow) {
  for (const auto dtype : kGradTypes) {
    for (const double value : {NAN, INFINITY, -INFINITY}) {
      const std::vector<Tensor> grads = {zeros(dtype, 5), zeros(dtype, 70001)};
      grads[1][40000].fill_(value);
      EXPECT_EQ(outcome(grads, true), kOverflowed) << dtype;
      EXPECT_EQ(outcome(grads, false), kOverflowed) << dtype;
      EXPECT_EQ(outcome(grads, false, scalar(INFINITY)), kLossNotFinite);
    }
  }
}

/// A plain loop over the values.
float outcome_of(const std::vector<Tensor>& grads) {
  for (const Tensor& grad : grads) {
    const Tensor values = grad.to(at::kCPU, at::kDouble);
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (!std::isfinite(values.const_data_ptr<double>()[i])) return kOverflowed;
    }
  }
  return kClean;
}

TEST_P(FinishBackwardTest, RandomListsMatchAPlainLoop) {
  Random random(5);
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<Tensor> grads;
    for (int64_t t = random.below(6); t >= 0; --t) {
      const auto dtype = kGradTypes[random.below(4)];
      const double values[] = {0.0, -0.0, 1.0, -1.0, 2.0, 0.5, NAN, -INFINITY};
      grads.push_back(zeros(dtype, 1 + random.below(700)));
      grads.back()[random.below(grads.back().size(0))].fill_(values[random.below(8)]);
    }
    const float expected = outcome_of(grads);
    EXPECT_EQ(outcome(grads, true), expected) << draw;
    EXPECT_EQ(outcome(grads, false), expected) << draw;
  }
}

TEST_P(FinishBackwardTest, NoGradsAreClean) {
  for (const std::vector<Tensor>& grads :
       {std::vector<Tensor>{}, {Tensor(), Tensor()}, {zeros(at::kHalf, 0)}}) {
    EXPECT_EQ(outcome(grads, true), kClean);
    EXPECT_EQ(outcome(grads, false), kClean);
  }
}

TORCHAMP_ON_EACH_DEVICE(FinishBackwardTest);

}  // namespace
}  // namespace torchamp

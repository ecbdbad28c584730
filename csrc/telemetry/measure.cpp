#include "telemetry/measure.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>

#include <limits>
#include <vector>

namespace torchamp {
namespace {

/// The smallest normal number of float16.
constexpr double kSmallestNormal = 1.0 / (1 << 14);

}  // namespace

at::Tensor measure(const at::Tensor& scale, const core::OptimizerState& state) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms, zeros, small;
  int64_t count = 0;
  for (const auto& param : state.params()) {
    const at::Tensor grad = param->grad.is_usable() ? param->model.grad() : at::Tensor();
    if (!grad.defined() || grad.is_sparse() || grad.numel() == 0) continue;
    const bool is_scaled =
        state.grads().one_pass().has_grads() && param->grad.state() == core::GradState::kChecked;
    const at::Tensor values = grad.to(at::kFloat);
    const at::Tensor scaled = is_scaled ? values.abs() : values.abs() * scale;
    const at::Tensor norm = values.norm();
    norms.push_back(is_scaled ? norm * state.grads().one_pass().factor() : norm);
    zeros.push_back(values.eq(0).sum());
    small.push_back(values.ne(0).logical_and(scaled < kSmallestNormal).sum());
    count += grad.numel();
  }
  if (count == 0) {
    const at::Tensor nothing = at::full_like(scale, std::numeric_limits<double>::quiet_NaN());
    return at::stack({scale, nothing, nothing, nothing});
  }
  const auto share = [count](const std::vector<at::Tensor>& counts) {
    return at::stack(counts).sum().to(at::kFloat) / static_cast<double>(count);
  };
  return at::stack({scale, at::stack(norms).norm(), share(zeros), share(small)});
}

}  // namespace torchamp

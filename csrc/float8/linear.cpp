#include "float8/linear.h"

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/sum.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

namespace torchamp::float8 {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// No cast of a level's reaches what a product is made of.
using WithoutAutocast = c10::impl::ExcludeDispatchKeyGuard;

struct Product : torch::autograd::Function<Product> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, const Call& call, bool trains);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> changed = sizes.vec();
  changed.back() = last;
  return changed;
}

Tensor Product::forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, const Call& call, bool trains) {
  const WithoutAutocast guard(c10::autocast_dispatch_keyset);
  const auto& [weights, index, is_transpose] = call.found;
  const bool is_transposed = call.is_transposed();
  const Matrix of_weight = weights->copy_of(index, /*columns=*/trains || !is_transposed);
  const bool keeps_input = trains && weight.requires_grad();
  const Matrix of_input = weights->copy_of_input(index, input, keeps_input);
  const Tensor& right = is_transposed ? of_weight.rows : of_weight.columns;
  const Tensor output =
      product({of_input.rows, of_input.scale}, {right, of_weight.scale}, call.dtype, bias);
  if (trains) {
    const Tensor& for_input = is_transposed ? of_weight.columns : of_weight.rows;
    ctx->save_for_backward({keeps_input ? of_input.columns : Tensor(), of_input.scale,
                            input.requires_grad() ? for_input : Tensor(), of_weight.scale});
    auto& saved = ctx->saved_data;
    saved["weights"] = c10::IValue::make_capsule(weights);
    saved["index"] = static_cast<int64_t>(index);
    saved["is_transpose"] = is_transpose;
    saved["is_transposed"] = is_transposed;
    saved["sizes"] = input.sizes();
    saved["dtype"] = weight.scalar_type();
    if (bias) saved["bias"] = bias->scalar_type();
  }
  return at::_unsafe_view(output, with_last(input.sizes(), output.size(1)));
}

variable_list Product::backward(AutogradContext* ctx, const variable_list& grads) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                              "linear: a product in float8 has no second derivative; compute it in "
                              "amp.disable_casts()");
  auto& saved = ctx->saved_data;
  const auto kept = ctx->get_saved_variables();  // a checkpoint computes them again in here
  const WithoutAutocast guard(c10::autocast_dispatch_keyset);
  const Tensor &input = kept[0], &input_scale = kept[1], &weight = kept[2], &weight_scale = kept[3];
  const Tensor grad = grads[0].reshape({-1, grads[0].size(-1)});
  const Matrix of_grad = cast({grad}, at::kFloat8_e5m2, weight.defined(), input.defined()).front();
  const auto weights = c10::static_intrusive_pointer_cast<Weights>(saved["weights"].toCapsule());
  weights->note_grad(saved["index"].toInt(), of_grad.scale);
  variable_list results(5);
  if (weight.defined()) {
    results[0] = product({of_grad.rows, of_grad.scale}, {weight, weight_scale}, grad.scalar_type())
                     .view(saved["sizes"].toIntVector());
  }
  if (input.defined()) {
    const Operand of_output{of_grad.columns, of_grad.scale}, of_input{input, input_scale};
    const auto dtype = saved["dtype"].toScalarType();
    const Tensor of_weight = saved["is_transposed"].toBool() ? product(of_output, of_input, dtype)
                                                             : product(of_input, of_output, dtype);
    results[1] = saved["is_transpose"].toBool() ? of_weight.t() : of_weight;
  }
  if (saved.count("bias") > 0 && ctx->needs_input_grad(2)) {
    results[2] = grad.sum(0, /*keepdim=*/false, at::kFloat).to(saved["bias"].toScalarType());
  }
  return results;
}

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
              const Call& call) {
  const bool trains =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
  return Product::apply(input, weight, bias, call, trains);
}

}  // namespace torchamp::float8

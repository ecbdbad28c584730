#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torchamp/linear.h>

#include "cuda/stream.h"
#include "ops/dispatch.h"
#include "ops/memory.h"
#include "weight_grads/cublas.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The rows of a batch, whatever its dimensions, even if they are empty.
Tensor rows_of(const Tensor& batch) {
  return (batch.dim() == 1 ? batch.unsqueeze(0) : batch.flatten(0, -2)).contiguous();
}

at::ScalarType sum_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool cublas_takes(const Tensor& sum, const Tensor& grads, const Tensor& inputs) {
  const auto is_readable = [](const Tensor& tensor) {
    return has_memory(*tensor.unsafeGetTensorImpl());
  };
  return sum.is_cuda() && sum.scalar_type() == at::kFloat && is_readable(sum) &&
         is_readable(grads) && is_readable(inputs) && grads.scalar_type() == inputs.scalar_type() &&
         at::isReducedFloatingType(grads.scalar_type()) &&
         cuda::cublas_takes(grads.size(0), grads.size(1), inputs.size(1));
}

void add_by_cublas(Tensor& sum, const Tensor& grads, const Tensor& inputs, bool onto) {
  const c10::DeviceGuard guard(sum.device());
  const cuda::Gemm gemm{grads.const_data_ptr(),
                        inputs.const_data_ptr(),
                        sum.mutable_data_ptr<float>(),
                        grads.scalar_type() == at::kHalf ? DType::kFloat16 : DType::kBFloat16,
                        grads.size(0),
                        grads.size(1),
                        inputs.size(1),
                        onto};
  cuda::add_product(cuda::current_queue(sum.get_device()), gemm);
  mark_written(sum);
}

/// sum (+)= gradsᵀ · inputs, in sum's precision.
void add_product(Tensor& sum, const Tensor& grads, const Tensor& inputs, bool onto) {
  if (cublas_takes(sum, grads, inputs)) return add_by_cublas(sum, grads, inputs, onto);
  const Tensor left = grads.t().to(sum.scalar_type()), right = inputs.to(sum.scalar_type());
  onto ? at::addmm_out(sum, sum, left, right) : at::mm_out(sum, left, right);
}

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Lets the stream that is current where the backward was called wait for the one that is current
/// now, at the end of the backward: so autograd does for grads that it accumulates itself.
void join_streams_at_end(at::Device device) {
  if (torch::autograd::get_current_graph_task_id() < 0) return;  // the program called the node
  const c10::Stream writing = current_stream(device);
  torch::autograd::Engine::get_default_engine().queue_callback([writing] {
    const c10::Stream callers = current_stream(writing.device());
    if (callers == writing) return;
    c10::Event written(writing.device_type());
    written.record(writing);
    written.block(callers);
  });
}

void add_weight_grad(const Tensor& weight, const Tensor& grads, const Tensor& inputs) {
  Tensor& sum = weight.mutable_grad();
  const bool onto = sum.defined();
  if (onto) {
    sum = (sum.is_sparse() ? sum.to_dense() : sum).to(sum_type(weight)).contiguous();
  } else {
    sum = at::empty(weight.sizes(), weight.options().dtype(sum_type(weight)).requires_grad(false));
  }
  add_product(sum, grads, inputs, onto);
  join_streams_at_end(sum.device());
}

at::ScalarType compute_type(const Tensor& input) {
  const auto device = input.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : input.scalar_type();
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    const auto type = compute_type(input);
    const Tensor cast = input.to(type);
    context->save_for_backward({cast, weight});
    context->saved_data["input_type"] = input.scalar_type();
    if (bias) context->saved_data["bias_type"] = bias->scalar_type();
    return at::linear(cast, weight.to(type), bias ? std::make_optional(bias->to(type)) : bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads.front().defined()) return {Tensor(), Tensor(), Tensor()};
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    const Tensor &grad = grads.front(), &input = saved[0], &weight = saved[1];
    variable_list results(3);
    if (context->needs_input_grad(0)) {
      const auto type = context->saved_data["input_type"].toScalarType();
      results[0] = at::matmul(grad, weight.to(grad.scalar_type())).to(type);
    }
    if (context->needs_input_grad(1)) results[1] = weight_grad(weight, grad, input);
    const auto bias_type = context->saved_data.find("bias_type");
    if (bias_type != context->saved_data.end() && context->needs_input_grad(2)) {
      results[2] = rows_of(grad).sum(0).to(bias_type->second.toScalarType());
    }
    return results;
  }

 private:
  /// Undefined where it was added to the weight's own.
  static Tensor weight_grad(const Tensor& weight, const Tensor& grad, const Tensor& input) {
    const Tensor grads = rows_of(grad), inputs = rows_of(input);
    if (!weight.is_leaf() || at::GradMode::is_enabled()) {
      return at::mm(grads.t(), inputs).to(weight.scalar_type());
    }
    add_weight_grad(weight, grads, inputs);
    return {};
  }
};

void check_floating(const char* name, const Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.defined() && tensor.is_floating_point(), "linear: expected ", name,
                   " to be a floating-point tensor, got ",
                   tensor.defined() ? tensor.toString() : "none");
}

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  check_floating("input", input);
  check_floating("weight", weight);
  TORCH_CHECK(weight.dim() == 2 && input.dim() > 0 && input.size(-1) == weight.size(1),
              "linear: expected weight to have sizes [out_features, ",
              input.dim() > 0 ? input.size(-1) : 0, "], got ", weight.sizes());
  TORCH_CHECK(!bias.defined() || bias.sizes() == weight.sizes().slice(0, 1),
              "linear: expected bias to have sizes ", weight.sizes().slice(0, 1), ", got ",
              bias.sizes());
  return Linear::apply(input, weight, bias.defined() ? std::make_optional(bias) : std::nullopt);
}

}  // namespace torchamp

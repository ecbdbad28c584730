#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torchamp/data_parallel.h>
#include <torchamp/detail/tools.h>

namespace torchamp::detail {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::nn::Module;

/// Replicas of a parameter as autograd sees them: their grads are summed, in order, on the
/// parameter's device.
struct ReplicasOf : torch::autograd::Function<ReplicasOf> {
  static variable_list forward(AutogradContext* context, const Tensor& param,
                               const variable_list& replicas) {
    context->saved_data["device"] = param.device();
    variable_list outputs;
    for (const Tensor& replica : replicas) outputs.push_back(replica.variable_data());
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Device device = context->saved_data["device"].toDevice();
    variable_list results(1 + grads.size());
    Tensor& sum = results[0];
    for (const Tensor& grad : grads) {
      if (grad.defined()) sum = sum.defined() ? sum + grad.to(device) : grad.to(device);
    }
    return results;
  }
};

/// Makes autograd treat `replicas`, which are leaves, as results of `param`.
void lead_grads_to(const Tensor& param, const variable_list& replicas) {
  variable_list detached;
  for (const Tensor& replica : replicas) detached.push_back(replica.detach());
  const variable_list linked = ReplicasOf::apply(param, detached);
  for (size_t i = 0; i < replicas.size(); ++i) {
    torch::autograd::impl::set_gradient_edge(replicas[i],
                                             torch::autograd::impl::gradient_edge(linked[i]));
  }
}

void lead_grads_to(const Module& module, const std::vector<std::shared_ptr<Module>>& replicas) {
  const variable_list params = module.parameters();
  std::vector<variable_list> replicas_of(params.size());
  for (const auto& replica : replicas) {
    const variable_list copies = replica->parameters();
    for (size_t i = 0; i < params.size(); ++i) replicas_of[i].push_back(copies[i]);
  }
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].requires_grad()) lead_grads_to(params[i], replicas_of[i]);
  }
}

}  // namespace

std::vector<std::shared_ptr<Module>> replicate(const Amp& amp, const Module& module,
                                               const std::vector<at::Device>& devices) {
  refresh(amp);
  std::vector<std::shared_ptr<Module>> replicas;
  for (const at::Device device : devices) replicas.push_back(module.clone(device));
  if (at::GradMode::is_enabled()) lead_grads_to(module, replicas);
  return replicas;
}

std::vector<Tensor> apply_in_parallel(const std::vector<Tensor>& inputs,
                                      const ForwardOfReplica& forward) {
  const auto count = static_cast<int64_t>(inputs.size());
  std::vector<Tensor> outputs(inputs.size());
  const at::ThreadLocalState callers;
  at::parallel_for(0, count, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    const at::ThreadLocalStateGuard guard(callers);
    for (int64_t i = begin; i < end; ++i) outputs[i] = forward(i, inputs[i]);
  });
  return outputs;
}

std::vector<Tensor> scatter(const Tensor& input, const std::vector<at::Device>& devices,
                            int64_t dim) {
  TORCH_CHECK_VALUE(!devices.empty(), "data_parallel: expected at least one device, got none");
  std::vector<Tensor> chunks = input.chunk(static_cast<int64_t>(devices.size()), dim);
  for (size_t i = 0; i < chunks.size(); ++i) chunks[i] = chunks[i].to(devices[i]);
  return chunks;
}

Tensor gather(std::vector<Tensor> outputs, at::Device device, int64_t dim) {
  for (Tensor& output : outputs) output = output.to(device);
  return at::cat(outputs, dim);
}

}  // namespace torchamp::detail

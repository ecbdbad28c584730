#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/rnn.h>
#include <torchamp/cast.h>
#include <torchamp/detail/tools.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/grad.h"

namespace torchamp {
namespace {

/// RoundArguments' dtype.
thread_local std::optional<at::ScalarType> rounded_to;

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr ||
         module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

bool is_in(const std::string& name, const std::string& outer) {
  return name == outer || name.rfind(outer + '.', 0) == 0;
}

bool is_kept(const std::string& name, const std::vector<std::string>& keep_fp32) {
  return std::any_of(keep_fp32.begin(), keep_fp32.end(),
                     [&name](const std::string& outer) { return is_in(name, outer); });
}

using NamedModules =
    std::vector<torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>::Item>;

/// The module and those in it, but for the kept ones.
NamedModules modules_to_cast(torch::nn::Module& module, bool keep_batchnorm_fp32,
                             const std::vector<std::string>& keep_fp32) {
  NamedModules modules;
  for (const auto& child : module.named_modules()) {
    if (keep_batchnorm_fp32 && is_batch_norm(*child.value())) continue;
    if (!is_kept(child.key(), keep_fp32)) modules.push_back(child);
  }
  return modules;
}

bool changes(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype;
}

void cast_tensor(at::Tensor tensor, at::ScalarType dtype) {
  const at::Tensor grad = std::exchange(tensor.mutable_grad(), at::Tensor());
  core::set_data(tensor, tensor.variable_data().to(dtype));
  if (grad.defined()) tensor.mutable_grad() = grad.to(dtype);
}

/// A copy whose versions count, which those of tensors made in inference mode do not.
at::Tensor counted_copy(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!c10::InferenceMode::is_enabled()) return tensor.to(dtype);
  const c10::InferenceMode off(false);
  const torch::NoGradGuard no_grad;
  return tensor.to(dtype);
}

}  // namespace

std::vector<at::Tensor> params_to_cast(torch::nn::Module& module, at::ScalarType dtype,
                                       bool keep_batchnorm_fp32,
                                       const std::vector<std::string>& keep_fp32) {
  std::vector<at::Tensor> params;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& child : modules_to_cast(module, keep_batchnorm_fp32, keep_fp32)) {
    for (const auto& param : child.value()->parameters(/*recurse=*/false)) {
      const bool is_new = seen.insert(param.unsafeGetTensorImpl()).second;
      if (is_new && changes(param, dtype)) params.push_back(param);
    }
  }
  return params;
}

std::vector<std::pair<std::string, at::Tensor>> buffers_to_cast(
    torch::nn::Module& module, at::ScalarType dtype, bool keep_batchnorm_fp32,
    const std::vector<std::string>& keep_fp32) {
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  for (const auto& child : modules_to_cast(module, keep_batchnorm_fp32, keep_fp32)) {
    const std::string prefix = child.key().empty() ? "" : child.key() + '.';
    for (const auto& buffer : child.value()->named_buffers(/*recurse=*/false)) {
      const std::string name = prefix + buffer.key();
      if (!is_kept(name, keep_fp32) && changes(*buffer, dtype)) buffers.emplace_back(name, *buffer);
    }
  }
  return buffers;
}

void cast_module(torch::nn::Module& module, at::ScalarType dtype, bool keep_batchnorm_fp32,
                 const std::vector<std::string>& keep_fp32) {
  const torch::NoGradGuard no_grad;
  const c10::InferenceMode off(false);  // whose tensors could never be trained, nor hashed
  const auto params = params_to_cast(module, dtype, keep_batchnorm_fp32, keep_fp32);
  const auto buffers = buffers_to_cast(module, dtype, keep_batchnorm_fp32, keep_fp32);
  for (const auto& param : params) cast_tensor(param, dtype);
  for (const auto& buffer : buffers) cast_tensor(buffer.second, dtype);
  flatten_recurrent(module);
}

namespace detail {

RoundArguments::RoundArguments(at::ScalarType dtype) {
  rounded_to = dtype;
}

RoundArguments::~RoundArguments() {
  rounded_to.reset();
}

void cast_argument(at::Tensor& tensor, at::ScalarType dtype, std::vector<CastTensor>& casts) {
  const bool rounds = rounded_to && changes(tensor, *rounded_to);
  if (!rounds && !changes(tensor, dtype)) return;
  const at::Tensor cast = counted_copy(rounds ? tensor.to(*rounded_to) : tensor, dtype);
  casts.push_back({tensor, cast, static_cast<uint32_t>(cast._version())});
  tensor = cast;
}

at::Tensor given_back(const at::Tensor& tensor, const std::vector<CastTensor>& casts,
                      std::optional<at::ScalarType> dtype) {
  for (const CastTensor& each : casts) {
    if (!tensor.is_same(each.cast)) continue;
    if (static_cast<uint32_t>(tensor._version()) != each.version) each.given.copy_(tensor);
    return each.given;
  }
  const bool casts_back = dtype && tensor.defined() && tensor.is_floating_point();
  return casts_back ? tensor.to(*dtype) : tensor;
}

}  // namespace detail

void flatten_recurrent(torch::nn::Module& module) {
  for (const auto& child : module.modules()) {
    if (auto* lstm = child->as<torch::nn::LSTM>()) lstm->flatten_parameters();
    if (auto* gru = child->as<torch::nn::GRU>()) gru->flatten_parameters();
    if (auto* rnn = child->as<torch::nn::RNN>()) rnn->flatten_parameters();
  }
}

}  // namespace torchamp

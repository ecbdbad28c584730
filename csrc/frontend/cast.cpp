#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/rnn.h>
#include <torchamp/cast.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace torchamp {
namespace {

template <class BatchNorm>
bool is_affine(const torch::nn::Module& module) {
  const auto* norm = dynamic_cast<const BatchNorm*>(&module);
  return norm != nullptr && norm->options.affine();
}

bool is_kept(const torch::nn::Module& module, bool keep_batchnorm_fp32) {
  return keep_batchnorm_fp32 && (is_affine<torch::nn::BatchNorm1dImpl>(module) ||
                                 is_affine<torch::nn::BatchNorm2dImpl>(module) ||
                                 is_affine<torch::nn::BatchNorm3dImpl>(module));
}

bool is_in(const std::string& name, const std::string& outer) {
  return name == outer || name.rfind(outer + '.', 0) == 0;
}

/// The module and those in it, but for the kept ones.
std::vector<std::shared_ptr<torch::nn::Module>> modules_to_cast(
    torch::nn::Module& module, bool keep_batchnorm_fp32,
    const std::vector<std::string>& keep_fp32) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& child : module.named_modules()) {
    const auto keeps = [&child](const std::string& name) { return is_in(child.key(), name); };
    if (is_kept(*child.value(), keep_batchnorm_fp32)) continue;
    if (std::none_of(keep_fp32.begin(), keep_fp32.end(), keeps)) modules.push_back(child.value());
  }
  return modules;
}

bool changes(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype;
}

void cast_tensor(at::Tensor tensor, at::ScalarType dtype) {
  if (!changes(tensor, dtype)) return;
  const at::Tensor grad = std::exchange(tensor.mutable_grad(), at::Tensor());
  tensor.set_data(tensor.variable_data().to(dtype));
  if (grad.defined()) tensor.mutable_grad() = grad.to(dtype);
}

/// Tensors that are made in inference mode have no versions.
at::Tensor as_counted(const at::Tensor& tensor, at::ScalarType dtype) {
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
    for (const auto& param : child->parameters(/*recurse=*/false)) {
      const bool is_new = seen.insert(param.unsafeGetTensorImpl()).second;
      if (is_new && changes(param, dtype)) params.push_back(param);
    }
  }
  return params;
}

void cast_module(torch::nn::Module& module, at::ScalarType dtype, bool keep_batchnorm_fp32,
                 const std::vector<std::string>& keep_fp32) {
  const torch::NoGradGuard no_grad;
  const c10::InferenceMode off(false);  // whose tensors could never be trained, nor hashed
  for (const auto& child : modules_to_cast(module, keep_batchnorm_fp32, keep_fp32)) {
    for (const auto& param : child->parameters(/*recurse=*/false)) cast_tensor(param, dtype);
    for (const auto& buffer : child->buffers(/*recurse=*/false)) cast_tensor(buffer, dtype);
  }
  flatten_recurrent(module);
}

namespace detail {

CastTensor cast_tensor(const at::Tensor& tensor, at::ScalarType dtype) {
  const bool infers = c10::InferenceMode::is_enabled();
  const at::Tensor cast = infers ? as_counted(tensor, dtype) : tensor.to(dtype);
  return {tensor, cast, static_cast<uint32_t>(cast._version())};
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

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>
#include <torchamp/optim/fused_param_state.h>

#include <cmath>

namespace torchamp::optim {
namespace {

using at::Tensor;
using c10::IValue;

/// LibTorch's files hold the count as an integer.
IValue to_saved(const std::string& name, const Tensor& tensor) {
  if (!FusedParamState::is_scalar(name)) return tensor;
  const double value = tensor.item<double>();
  return name == "step" ? IValue(static_cast<int64_t>(std::llround(value))) : IValue(value);
}

}  // namespace

bool FusedParamState::is_scalar(const std::string& name) {
  return name == "step" || name == "norm_average";
}

Tensor FusedParamState::get(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? Tensor() : found->second;
}

void FusedParamState::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors_) archive.write(name, to_saved(name, tensor));
}

void FusedParamState::serialize(torch::serialize::InputArchive& archive) {
  for (const std::string& name : archive.keys()) {
    IValue value;
    if (!archive.try_read(name, value)) continue;
    if (value.isTensor()) {
      set(name, value.toTensor());
    } else if (is_scalar(name)) {
      set(name, at::scalar_tensor(value.toScalar(), at::kFloat));
    }
  }
}

}  // namespace torchamp::optim

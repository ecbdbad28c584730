// One batch over several devices.
#pragma once

#include <torchamp/model.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace torchamp {
namespace detail {

/// Copies of a module of `amp`, one on each device, whose grads reach the module's parameters.
TORCHAMP_API std::vector<std::shared_ptr<torch::nn::Module>> replicate(
    const Amp& amp, const torch::nn::Module& module, const std::vector<at::Device>& devices);

/// Runs one chunk: `forward(i, chunk)` of replica i.
using ForwardOfReplica = std::function<at::Tensor(size_t, const at::Tensor&)>;

/// `forward` of all `inputs`, in parallel if at::parallel_for has the threads.
TORCHAMP_API std::vector<at::Tensor> apply_in_parallel(const std::vector<at::Tensor>& inputs,
                                                       const ForwardOfReplica& forward);

/// At most one chunk per device, on that device.
TORCHAMP_API std::vector<at::Tensor> scatter(const at::Tensor& input,
                                             const std::vector<at::Device>& devices, int64_t dim);
TORCHAMP_API at::Tensor gather(std::vector<at::Tensor> outputs, at::Device device, int64_t dim);

template <class T>
const std::shared_ptr<T>& pointer_to(const torch::nn::ModuleHolder<T>& module) {
  return module.ptr();
}
template <class T>
const std::shared_ptr<T>& pointer_to(const std::shared_ptr<T>& module) {
  return module;
}

/// `replica` as a model that casts as `model` does.
template <class T>
Model<std::shared_ptr<T>> as_model(const std::shared_ptr<torch::nn::Module>& replica,
                                   const std::shared_ptr<T>&, const std::shared_ptr<Amp>& amp) {
  return {std::dynamic_pointer_cast<T>(replica), amp};
}

}  // namespace detail

/// @addtogroup cast
/// @{

/// LibTorch's data_parallel for a model that initialize returned: runs `input` in chunks along
/// `dim` through replicas of the model, one on each of `devices`, each in its own thread, and
/// gathers their outputs on output_device or the first device. Grads reach the model.
///
/// The module must have clone(), for example by deriving from torch::nn::Cloneable. `devices` may
/// name a device several times. Writes of replicas to buffers, such as a batch norm's running
/// statistics, are lost. Throws ValueError if there are no devices.
template <class M>
at::Tensor data_parallel(Model<M>& model, const at::Tensor& input,
                         const std::vector<at::Device>& devices,
                         std::optional<at::Device> output_device = std::nullopt, int64_t dim = 0) {
  const std::vector<at::Tensor> inputs = detail::scatter(input, devices, dim);
  const std::vector<at::Device> used(devices.begin(),
                                     devices.begin() + static_cast<std::ptrdiff_t>(inputs.size()));
  const auto& module = detail::pointer_to(model.module());
  const auto replicas = detail::replicate(*model.amp(), *module, used);
  const auto forward = [&](size_t i, const at::Tensor& chunk) {
    return at::Tensor(detail::as_model(replicas[i], module, model.amp())(chunk));
  };
  return detail::gather(detail::apply_in_parallel(inputs, forward),
                        output_device.value_or(devices.front()), dim);
}

/// @}

}  // namespace torchamp

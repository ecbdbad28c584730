// Functions of the library that the tools in csrc/tools use, and programs do not.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torchamp/detail/export.h>

#include <memory>
#include <vector>

namespace torchamp {

class Amp;
class Optimizer;
namespace core {
class OptimizerState;
}

namespace detail {

/// A parameter that an optimizer of initialize steps, as it is now.
struct SteppedParam {
  at::Tensor model;           ///< the model's
  at::Tensor stepped;         ///< its float32 master, or `model` if it has none
  at::Tensor grad;            ///< what the next step uses; undefined if it has none
  at::Tensor factor;          ///< a float32 scalar that unscales `grad`; undefined: it is unscaled
  bool keeps_scaled = false;  ///< whether backwards leave grads as autograd makes them
};

/// The parameters that an optimizer's state steps.
TORCHAMP_API std::vector<SteppedParam> stepped_params(const core::OptimizerState& state);
/// The parameters that `optimizer` steps. Throws as Optimizer::step().
TORCHAMP_API std::vector<SteppedParam> stepped_params(const Optimizer& optimizer);

/// The tensors of sizes like the model's `param` that a LibTorch optimizer keeps for it; none
/// before its first step. `function` names the caller in the RuntimeError for a class that torchamp
/// does not know.
TORCHAMP_API std::vector<at::Tensor> state_tensors(const char* function,
                                                   const torch::optim::Optimizer& optimizer,
                                                   const at::Tensor& param);

/// Observes the steps of an optimizer.
struct StepObserver {
  StepObserver() = default;
  virtual ~StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;

  /// Called by Optimizer::step() before anything is changed.
  virtual void before_step() = 0;
};

/// Calls `observer` at every step of `optimizer`, for as long as the program keeps it.
TORCHAMP_API void observe(const Optimizer& optimizer,
                          const std::shared_ptr<StepObserver>& observer);

/// Whether torch's current stream on the device is being captured into a graph. Throws
/// std::runtime_error if the driver cannot report it.
TORCHAMP_API bool is_capturing(at::Device device);

/// Whether torchamp::release() has made the models and optimizers plain.
TORCHAMP_API bool is_released(const Amp& amp);

/// loss.backward(), in which no thread casts.
TORCHAMP_API void backward_without_casts(const at::Tensor& loss);

/// While it lives, models called in this thread get floating arguments in their own dtype, with
/// the values that a cast to `dtype` leaves.
class TORCHAMP_API RoundArguments {
 public:
  explicit RoundArguments(at::ScalarType dtype);
  ~RoundArguments();
  RoundArguments(const RoundArguments&) = delete;
  RoundArguments& operator=(const RoundArguments&) = delete;
};

}  // namespace detail
}  // namespace torchamp

// One forward and backward of a model, watched, after which the model is as before.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torchamp/preflight.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "inspect/first_overflow.h"

namespace torchamp::inspect {

/// Gives a module its parameters, buffers and grads back, and torch its random numbers.
class Unchanged {
 public:
  /// Keeps a copy of them.
  explicit Unchanged(torch::nn::Module& module);
  ~Unchanged();
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

  /// Whether one of the tensors has another value by now.
  bool is_written(const at::Tensor& tensor) const;

 private:
  struct SavedTensor {
    at::Tensor tensor;
    at::Tensor data;   ///< with the tensor's memory and dtype
    at::Tensor value;  ///< a copy
    at::Tensor grad;
  };
  struct RandomState {
    at::Generator generator;
    at::Tensor state;
  };
  std::vector<SavedTensor> saved_;
  std::vector<RandomState> random_;
};

/// The results of one iteration.
struct Outcome {
  double loss = 0;
  /// By parameter, in float32 and not scaled.
  std::map<std::string, at::Tensor> grads;
  std::exception_ptr error;
  std::string note;  ///< of SameDropout

  bool has_finite_loss() const;
  /// Whether loss and grads are.
  bool is_finite() const;
};

/// Runs one with SameDropout, of which the loss is multiplied by `scale` before the backward. What
/// the model or the loss throws becomes its error.
Outcome run_iteration(torch::nn::Module& module, const detail::ModelAtLevel& model, double scale,
                      const std::shared_ptr<OpObserver>& observer);

/// Milliseconds of the fastest of some iterations that nothing watches; empty if one throws. Waits
/// for the device.
std::optional<double> time_iteration(torch::nn::Module& module, const detail::ModelAtLevel& model,
                                     double scale);

/// "mul", or "mul of "head"".
std::string named(const WatchedOp& op);

/// Finds where an iteration overflows, or which op throws.
class FailureFinder : public FirstOverflow {
 public:
  void after(const WatchedOp& op, const at::ObserverContext* begun) override;

  /// Its name; "" if none threw.
  const std::string& raised() const { return raised_; }

 private:
  std::mutex mutex_;
  std::string raised_;
};

}  // namespace torchamp::inspect

// Stage 7: what a fused optimizer's parameters are stepped by.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

#include <vector>

#include "core/optimizer_state.h"
#include "optim/fused_stepper.h"

namespace torchamp::optim {

/// `options` of a group. Throws ValueError unless they are of the class of `defaults`.
FusedOptions& checked_kind(const torch::optim::OptimizerOptions& defaults,
                           torch::optim::OptimizerOptions& options);

/// A FusedStepper for each device and algorithm of a FusedOptimizer's parameters.
class FusedSteppers {
 public:
  /// Steps every parameter that has a grad, multiplied by step.grad_factor. Unless step.skip is 0
  /// nothing changes, which only the device knows. Throws TypeError for sparse grads, before
  /// anything is written.
  void step(FusedOptimizer& optimizer, const FusedStepper::StepInputs& step);
  /// Steps what `state` does, all parameters of the groups, and writes the model's in the same
  /// pass. After an overflow nothing changes, which only the device knows.
  void step_masters(FusedOptimizer& optimizer, core::OptimizerState& state);
  /// Whether the next step will find the parameters, masters and states that the last one has left.
  bool are_current(FusedOptimizer& optimizer) const;
  /// Makes the next step read the optimizer's `state()` again, which has been changed.
  void clear();

 private:
  /// A parameter's place, compared to detect changed groups.
  struct Place {
    at::Tensor param;
    at::Tensor stepped;  ///< its master, or itself
    at::Device device;
    at::ScalarType dtype;
    StepAlgorithm algorithm;
    int64_t group;

    bool operator==(const Place& other) const;
  };
  struct Stepper {
    StepAlgorithm algorithm;
    std::vector<at::Tensor> params;  ///< the groups'
    FusedStepper core;
  };

  static std::vector<Place> places_of(FusedOptimizer& optimizer);
  void make(std::vector<Place> rest, const StorageOptions& storage);
  void update(FusedOptimizer& optimizer);
  /// Passes `state()` of parameter i to its stepper.
  static void adopt(FusedOptimizer& optimizer, Stepper& stepper, size_t i);
  /// Puts its states in `state()`.
  static void publish(FusedOptimizer& optimizer, const Stepper& stepper, size_t i);
  void publish_new(FusedOptimizer& optimizer, Stepper& stepper);

  std::vector<Place> places_;
  size_t state_count_ = 0;  ///< of the optimizer's, when they were last published
  std::vector<Stepper> steppers_;
};

}  // namespace torchamp::optim

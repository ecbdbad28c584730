// Adagrad.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// The options of torch::optim::AdagradOptions except initial_accumulator_value, which is 0.
class TORCHAMP_API FusedAdagradOptions : public FusedOptionsOf<FusedAdagradOptions> {
  TORCHAMP_OPTION(double, lr, 1e-2);           ///< learning rate
  TORCHAMP_OPTION(double, lr_decay, 0.0);      ///< lr of step t: lr / (1 + (t - 1) · lr_decay)
  TORCHAMP_OPTION(double, weight_decay, 0.0);  ///< added to the grads, times the parameter
  TORCHAMP_OPTION(double, eps, 1e-10);         ///< added to the divisor
  TORCHAMP_OPTION(bool, maximize, false);      ///< gradient ascent
  /// Weight decay shrinks the parameters; apex's adagrad_w_mode.
  TORCHAMP_OPTION(bool, decoupled_weight_decay, false);

 public:
  /// The defaults.
  FusedAdagradOptions() = default;
  /// The defaults except the learning rate.
  FusedAdagradOptions(double lr) { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedAdagrad"; }
  StepAlgorithm algorithm() const override { return StepAlgorithm::kAdagrad; }

  using FusedOptions::serialize;
  /// Also writes the initial_accumulator_value that torch::optim::Adagrad reads.
  void serialize(torch::serialize::OutputArchive& archive) const override;

 protected:
  std::vector<OptionField> fields() override {
    return {{"lr", &lr_},
            {"lr_decay", &lr_decay_},
            {"eps", &eps_},
            {"weight_decay", &weight_decay_},
            {"decoupled_weight_decay", &decoupled_weight_decay_, true},
            {"maximize", &maximize_, true}};
  }
};

/// torch::optim::Adagrad in one pass.
class TORCHAMP_API FusedAdagrad : public FusedOptimizerOf<FusedAdagradOptions> {
 public:
  using FusedOptimizerOf<FusedAdagradOptions>::FusedOptimizerOf;
};

/// @}

}  // namespace torchamp::optim

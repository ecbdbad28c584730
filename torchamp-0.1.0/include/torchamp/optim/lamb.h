// LAMB.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// Options of FusedLAMB.
class TORCHAMP_API FusedLAMBOptions : public FusedOptionsOf<FusedLAMBOptions> {
  using Limit = std::optional<double>;
  TORCHAMP_OPTION(double, lr, 1e-3);                 ///< learning rate
  TORCHAMP_OPTION(Betas, betas, Betas(0.9, 0.999));  ///< decay rates of the two moments
  TORCHAMP_OPTION(double, eps, 1e-6);                ///< added to the divisor
  TORCHAMP_OPTION(double, weight_decay, 0.01);       ///< share of the parameter in the update
  TORCHAMP_OPTION(bool, maximize, false);            ///< gradient ascent
  TORCHAMP_OPTION(bool, bias_correction, true);      ///< corrects the moments' bias towards zero
  /// Weight decay is added to the update rather than to the grads.
  TORCHAMP_OPTION(bool, decoupled_weight_decay, true);
  /// The share of a new grad is 1 - beta1 rather than 1; apex's grad_averaging.
  TORCHAMP_OPTION(bool, averages_grads, true);
  /// Groups without weight decay are scaled too; apex's use_nvlamb.
  TORCHAMP_OPTION(bool, always_adapts, false);
  /// The total norm to which the grads of all groups are clipped; empty: no clipping.
  TORCHAMP_OPTION(Limit, max_grad_norm, 1.0);

 public:
  /// The defaults.
  FusedLAMBOptions() = default;
  /// The defaults except the learning rate.
  FusedLAMBOptions(double lr) { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedLAMB"; }
  StepAlgorithm algorithm() const override { return StepAlgorithm::kLambUpdate; }

 protected:
  std::vector<OptionField> fields() override {
    return {{"lr", &lr_},
            {"betas", &betas_},
            {"eps", &eps_},
            {"weight_decay", &weight_decay_},
            {"decoupled_weight_decay", &decoupled_weight_decay_},
            {"maximize", &maximize_},
            {"bias_correction", &bias_correction_},
            {"averages_grads", &averages_grads_},
            {"always_adapts", &always_adapts_},
            {"max_grad_norm", &max_grad_norm_}};
  }
};

/// LAMB (You et al., arXiv:1904.00962): Adam's update, scaled to each tensor's norm. Grads
/// are not modified.
class TORCHAMP_API FusedLAMB : public FusedOptimizerOf<FusedLAMBOptions> {
 public:
  using FusedOptimizerOf<FusedLAMBOptions>::FusedOptimizerOf;
};

/// @}

}  // namespace torchamp::optim

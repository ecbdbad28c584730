// NovoGrad.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// Options of FusedNovoGrad.
class TORCHAMP_API FusedNovoGradOptions : public FusedOptionsOf<FusedNovoGradOptions> {
  TORCHAMP_OPTION(double, lr, 1e-3);                 ///< learning rate
  TORCHAMP_OPTION(Betas, betas, Betas(0.9, 0.999));  ///< decay rates of the two moments
  TORCHAMP_OPTION(double, eps, 1e-8);                ///< added to the divisor
  TORCHAMP_OPTION(double, weight_decay, 0.0);        ///< share of the parameter in the update
  TORCHAMP_OPTION(bool, maximize, false);            ///< gradient ascent
  TORCHAMP_OPTION(bool, bias_correction, true);      ///< corrects the moments' bias towards zero
  /// Weight decay is averaged with the grads; apex's reg_inside_moment.
  TORCHAMP_OPTION(bool, decay_in_moment, false);
  /// The share of a new grad is 1 - beta1 rather than 1; apex's grad_averaging.
  TORCHAMP_OPTION(bool, averages_grads, true);
  /// The running norm starts at zero rather than at the first norm; apex's init_zero.
  TORCHAMP_OPTION(bool, starts_at_zero, false);

 public:
  /// The defaults.
  FusedNovoGradOptions() = default;
  /// The defaults except the learning rate.
  FusedNovoGradOptions(double lr) { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedNovoGrad"; }
  StepAlgorithm algorithm() const override { return StepAlgorithm::kNovoGrad; }

 protected:
  std::vector<OptionField> fields() override {
    return {{"lr", &lr_},
            {"betas", &betas_},
            {"eps", &eps_},
            {"weight_decay", &weight_decay_},
            {"maximize", &maximize_},
            {"bias_correction", &bias_correction_},
            {"decay_in_moment", &decay_in_moment_},
            {"averages_grads", &averages_grads_},
            {"starts_at_zero", &starts_at_zero_}};
  }
};

/// NovoGrad (Ginsburg et al., arXiv:1905.11286): the second moment is one number per tensor, the
/// running norm of its grads.
class TORCHAMP_API FusedNovoGrad : public FusedOptimizerOf<FusedNovoGradOptions> {
 public:
  using FusedOptimizerOf<FusedNovoGradOptions>::FusedOptimizerOf;
};

/// @}

}  // namespace torchamp::optim

// Stochastic gradient descent.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

#include <limits>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// The options of torch::optim::SGDOptions, and more.
class TORCHAMP_API FusedSGDOptions : public FusedOptionsOf<FusedSGDOptions> {
  TORCHAMP_OPTION(double, lr, 1e-3);           ///< learning rate
  TORCHAMP_OPTION(double, momentum, 0.0);      ///< decay rate of momentum_buffer; 0: no buffer
  TORCHAMP_OPTION(double, dampening, 0.0);     ///< share of a new grad that the momentum omits
  TORCHAMP_OPTION(double, weight_decay, 0.0);  ///< added to the grads, times the parameter
  TORCHAMP_OPTION(bool, nesterov, false);      ///< Nesterov's momentum
  TORCHAMP_OPTION(bool, maximize, false);      ///< gradient ascent
  /// Weight decay is added to the step instead of the grads; apex's wd_after_momentum.
  TORCHAMP_OPTION(bool, decay_after_momentum, false);

 public:
  /// The defaults.
  FusedSGDOptions() = default;
  /// The defaults except the learning rate.
  FusedSGDOptions(double lr) { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedSGD"; }
  /// kMomentum if there is a momentum, else kSgd.
  StepAlgorithm algorithm() const override {
    return momentum() != 0.0 ? StepAlgorithm::kMomentum : StepAlgorithm::kSgd;
  }
  /// Also throws ValueError for nesterov without a momentum or with dampening.
  void check() const override {
    FusedOptions::check();
    TORCH_CHECK_VALUE(
        !nesterov() || (momentum() > 0.0 && dampening() == 0.0), optimizer_name(),
        ": expected a positive momentum and no dampening with nesterov, got momentum ", momentum(),
        " and dampening ", dampening());
  }

 protected:
  std::vector<OptionField> fields() override {
    return {{"lr", &lr_},
            {"momentum", &momentum_},
            {"dampening", &dampening_, false, -std::numeric_limits<double>::infinity()},
            {"weight_decay", &weight_decay_},
            {"nesterov", &nesterov_},
            {"maximize", &maximize_, true},
            {"decay_after_momentum", &decay_after_momentum_, true}};
  }
};

/// torch::optim::SGD in one pass.
class TORCHAMP_API FusedSGD : public FusedOptimizerOf<FusedSGDOptions> {
 public:
  using FusedOptimizerOf<FusedSGDOptions>::FusedOptimizerOf;
};

/// @}

}  // namespace torchamp::optim

// Stochastic gradient descent, and LARS, which adapts the learning rate to each tensor.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

#include <limits>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// Options of FusedSGD and FusedLARS.
template <class Derived>
class SgdOptionsOf : public FusedOptionsOf<Derived> {
  TORCHAMP_OPTION(double, lr, 1e-3);           ///< learning rate
  TORCHAMP_OPTION(double, momentum, 0.0);      ///< decay rate of momentum_buffer; 0: no buffer
  TORCHAMP_OPTION(double, dampening, 0.0);     ///< share of a new grad that the momentum omits
  TORCHAMP_OPTION(double, weight_decay, 0.0);  ///< added to the grads, times the parameter
  TORCHAMP_OPTION(bool, nesterov, false);      ///< Nesterov's momentum
  TORCHAMP_OPTION(bool, maximize, false);      ///< gradient ascent
  /// Weight decay is added to the step instead of the grads; apex's wd_after_momentum.
  TORCHAMP_OPTION(bool, decay_after_momentum, false);

 public:
  /// kMomentum if there is a momentum, else kSgd.
  StepAlgorithm algorithm() const override {
    return momentum() != 0.0 ? StepAlgorithm::kMomentum : StepAlgorithm::kSgd;
  }
  /// Also throws ValueError for nesterov without a momentum or with dampening.
  void check() const override {
    FusedOptions::check();
    TORCH_CHECK_VALUE(
        !nesterov() || (momentum() > 0.0 && dampening() == 0.0), this->optimizer_name(),
        ": expected a positive momentum and no dampening with nesterov, got momentum ", momentum(),
        " and dampening ", dampening());
  }

 protected:
  /// See FusedOptions.
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

/// The options of torch::optim::SGDOptions, and more.
class TORCHAMP_API FusedSGDOptions : public SgdOptionsOf<FusedSGDOptions> {
 public:
  /// The defaults.
  FusedSGDOptions() = default;
  /// The defaults except the learning rate.
  FusedSGDOptions(double lr) { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedSGD"; }
};

/// FusedSGDOptions with momentum 0.9, and those that set a tensor's learning rate.
class TORCHAMP_API FusedLARSOptions : public SgdOptionsOf<FusedLARSOptions> {
  TORCHAMP_OPTION(double, trust_coefficient, 0.001);  ///< largest update relative to its norm
  TORCHAMP_OPTION(double, eps, 1e-8);                 ///< for the division
  TORCHAMP_OPTION(bool, clip, false);                 ///< LARC instead of LARS

 public:
  /// The defaults except the learning rate.
  FusedLARSOptions(double lr) {
    this->lr(lr);
    momentum_.value = 0.9;
  }
  const char* optimizer_name() const override { return "FusedLARS"; }

 protected:
  std::vector<OptionField> fields() override {
    auto all = SgdOptionsOf::fields();
    all.insert(all.end(),
               {{"trust_coefficient", &trust_coefficient_}, {"eps", &eps_}, {"clip", &clip_}});
    return all;
  }
};

/// torch::optim::SGD in one pass.
class TORCHAMP_API FusedSGD : public FusedOptimizerOf<FusedSGDOptions> {
 public:
  using FusedOptimizerOf<FusedSGDOptions>::FusedOptimizerOf;
};

/// Layer-wise adaptive rate scaling (You et al., arXiv:1708.03888) on SGD.
///
/// A tensor's learning rate is trust_coefficient · ‖param‖ / (‖grad‖ + weight_decay · ‖param‖ +
/// eps), times the group's; with `clip` (LARC) it is at most the group's. Tensors of norm zero take
/// the group's.
class TORCHAMP_API FusedLARS : public FusedOptimizerOf<FusedLARSOptions> {
 public:
  using FusedOptimizerOf<FusedLARSOptions>::FusedOptimizerOf;
};

/// @}

}  // namespace torchamp::optim

// Adam and AdamW.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// Options of FusedAdam and FusedAdamW.
template <class Derived>
class AdamOptionsOf : public FusedOptionsOf<Derived> {
  TORCHAMP_OPTION(double, lr, 1e-3);                     ///< learning rate
  TORCHAMP_OPTION(Betas, betas, Betas(0.9, 0.999));      ///< decay rates of the two moments
  TORCHAMP_OPTION(double, eps, 1e-8);                    ///< added to the divisor
  TORCHAMP_OPTION(double, weight_decay, 0.0);            ///< 0.01 for AdamW
  TORCHAMP_OPTION(bool, maximize, false);                ///< gradient ascent
  TORCHAMP_OPTION(bool, decoupled_weight_decay, false);  ///< as in AdamW
  /// False: no bias correction, as in apex.
  TORCHAMP_OPTION(bool, bias_correction, true);

 public:
  /// kAdam.
  StepAlgorithm algorithm() const override { return StepAlgorithm::kAdam; }
  /// Also throws ValueError for a file of LibTorch's Adam with amsgrad.
  void check() const override {
    FusedOptions::check();
    TORCH_CHECK_VALUE(!amsgrad_.value, this->optimizer_name(),
                      ": expected amsgrad to be false, got true; torch::optim::Adam and AdamW "
                      "have it");
  }

 protected:
  /// See FusedOptions.
  std::vector<OptionField> fields() override {
    return {{"lr", &lr_},
            {"betas", &betas_},
            {"eps", &eps_},
            {"weight_decay", &weight_decay_},
            {"decoupled_weight_decay", &decoupled_weight_decay_, true},
            {"maximize", &maximize_, true},
            {"bias_correction", &bias_correction_, true},
            {"amsgrad", &amsgrad_}};
  }

 private:
  Option<bool> amsgrad_{false, false};  ///< in LibTorch's files, and false
};

/// The options of torch::optim::AdamOptions, and more.
class TORCHAMP_API FusedAdamOptions : public AdamOptionsOf<FusedAdamOptions> {
 public:
  /// The defaults.
  FusedAdamOptions() = default;
  /// The defaults except the learning rate.
  FusedAdamOptions(double lr) { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedAdam"; }
};

/// The options of torch::optim::AdamWOptions, and more.
class TORCHAMP_API FusedAdamWOptions : public AdamOptionsOf<FusedAdamWOptions> {
 public:
  /// The defaults: weight decay of 0.01, decoupled.
  FusedAdamWOptions() {
    weight_decay_.value = 1e-2;
    decoupled_weight_decay_.value = true;
  }
  /// The defaults except the learning rate.
  FusedAdamWOptions(double lr) : FusedAdamWOptions() { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedAdamW"; }
};

/// torch::optim::Adam in one pass: weight decay is added to the grads.
class TORCHAMP_API FusedAdam : public FusedOptimizerOf<FusedAdamOptions> {
 public:
  using FusedOptimizerOf<FusedAdamOptions>::FusedOptimizerOf;
};

/// torch::optim::AdamW in one pass: weight decay shrinks the parameters themselves.
class TORCHAMP_API FusedAdamW : public FusedOptimizerOf<FusedAdamWOptions> {
 public:
  using FusedOptimizerOf<FusedAdamWOptions>::FusedOptimizerOf;
};

/// @}

}  // namespace torchamp::optim

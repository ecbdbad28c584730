// Adam and AdamW.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

namespace torchamp::optim {

template <class Derived>
class AdamOptionsOf : public FusedOptionsOf<Derived> {
  TORCHAMP_OPTION(double, lr, 1e-3);
  TORCHAMP_OPTION(Betas, betas, Betas(0.9, 0.999));
  TORCHAMP_OPTION(double, eps, 1e-8);
  TORCHAMP_OPTION(double, weight_decay, 0.0);
  TORCHAMP_OPTION(bool, amsgrad, false);
  TORCHAMP_OPTION(bool, maximize, false);
  TORCHAMP_OPTION(bool, decoupled_weight_decay, false);  ///< as AdamW has it
  /// False leaves the averages as small as they begin, which apex allows.
  TORCHAMP_OPTION(bool, bias_correction, true);

 public:
  StepAlgorithm algorithm() const override {
    return amsgrad() ? StepAlgorithm::kAmsGrad : StepAlgorithm::kAdam;
  }

 protected:
  std::vector<OptionField> fields() override {
    return {{"lr", &lr_},
            {"betas", &betas_},
            {"eps", &eps_},
            {"weight_decay", &weight_decay_},
            {"decoupled_weight_decay", &decoupled_weight_decay_, true},
            {"maximize", &maximize_, true},
            {"bias_correction", &bias_correction_, true},
            {"amsgrad", &amsgrad_}};  // no column: it is the algorithm
  }
};

/// Options as torch::optim::AdamOptions, and more.
class TORCHAMP_API FusedAdamOptions : public AdamOptionsOf<FusedAdamOptions> {
 public:
  FusedAdamOptions() = default;
  FusedAdamOptions(double lr) { this->lr(lr); }
  const char* optimizer_name() const override { return "FusedAdam"; }
};

/// Options as torch::optim::AdamWOptions, and more.
class TORCHAMP_API FusedAdamWOptions : public AdamOptionsOf<FusedAdamWOptions> {
 public:
  FusedAdamWOptions() {
    weight_decay_.value = 1e-2;
    decoupled_weight_decay_.value = true;
  }
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

}  // namespace torchamp::optim

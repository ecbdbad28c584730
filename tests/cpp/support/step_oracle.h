// A reference implementation of fused_step: one element at a time in float64, from the formulas of
// torch.optim, apex and the papers.
#pragma once

#include <torchamp/fused_step.h>

#include <vector>

namespace torchamp::oracle {

/// A group's options; each algorithm reads its own.
struct StepOptions {
  double lr = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  double dampening = 0;
  bool decoupled = false;
  bool maximize = false;
  bool bias_correction = true;
  bool nesterov = false;
  bool decay_after_momentum = false;
  bool decay_in_moment = false;
  bool averages_grads = true;
  bool starts_at_zero = false;
  bool always_adapts = false;
};

/// The options as a row of StepScalars::hyper; columns that the algorithm lacks are NaN.
std::vector<double> hyper_row(StepAlgorithm algorithm, const StepOptions& options);

/// The per-tensor inputs of a step.
struct StepTensor {
  double step = 1;  ///< from 1
  double param_norm = 0;
  double update_norm = 0;
  double norm_average = 0;  ///< after this step
};

struct StepElement {
  double grad;  ///< already multiplied by grad_factor
  double param;
  double states[3];
};

/// NovoGrad's running norm after a step, given its value `before`.
double norm_average(const StepOptions& options, const StepTensor& tensor, double before);

void step(StepAlgorithm algorithm, const StepOptions& options, const StepTensor& tensor,
          StepElement& element);

}  // namespace torchamp::oracle

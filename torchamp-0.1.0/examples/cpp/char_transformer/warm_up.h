// A learning rate schedule with warm-up.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <cmath>
#include <vector>

/// Increases linearly to the optimizer's learning rate over `warm_up` steps, then decays along half
/// a cosine to a tenth of it at step `steps`. Each step() sets the rate of the next step.
class WarmUpThenCosine : public torch::optim::LRScheduler {
 public:
  WarmUpThenCosine(torch::optim::Optimizer& optimizer, int64_t warm_up, int64_t steps)
      : LRScheduler(optimizer),
        base_(get_current_lrs()),
        warm_up_(static_cast<double>(warm_up)),
        steps_(static_cast<double>(steps)) {}

 private:
  std::vector<double> get_lrs() override {
    std::vector<double> rates = base_;
    for (double& rate : rates) rate *= factor();
    return rates;
  }

  double factor() const {
    const double step = step_count_;
    if (step < warm_up_) return (step + 1) / warm_up_;
    const double done = std::min(1.0, (step - warm_up_) / (steps_ - warm_up_));
    return 0.1 + 0.45 * (1 + std::cos(M_PI * done));
  }

  std::vector<double> base_;
  double warm_up_;
  double steps_;
};

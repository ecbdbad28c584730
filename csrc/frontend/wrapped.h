// One optimizer of a session.
#pragma once

#include <torch/optim/optimizer.h>
#include <torchamp/detail/tools.h>
#include <torchamp/optim/fused_optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/optimizer_state.h"

namespace torchamp {

class LateReport;

/// One optimizer of a session.
struct WrappedOptimizer {
  /// The optimizer must outlive it.
  explicit WrappedOptimizer(torch::optim::Optimizer& optimizer);

  /// Whether its groups hold what `state` steps.
  bool is_current() const;
  /// False once it is known to be destroyed, moved or emptied.
  bool is_alive() const;

  /// As the user created it; null once that is known to be destroyed.
  torch::optim::Optimizer* wrapped;
  /// Expires with it.
  std::weak_ptr<const void> life;
  /// `wrapped`, if it is a fused optimizer, which skips on the device; else null.
  optim::FusedOptimizer* fused;
  /// The parameters that it steps, and the state that its next step depends on.
  std::shared_ptr<core::OptimizerState> state;
  /// Counts what the device did in its steps.
  std::shared_ptr<LateReport> report;
  /// Called in this order.
  std::vector<std::weak_ptr<detail::StepObserver>> observers = {};
  int64_t backwards = 0;  ///< since the last step of Optimizer
};

/// Moves the state of the parameter `from` to `to`, which replaces it.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to);

}  // namespace torchamp

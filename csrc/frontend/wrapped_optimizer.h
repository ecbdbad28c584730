// One optimizer of a session.
#pragma once

#include <torch/optim/optimizer.h>
#include <torchamp/optim/fused_optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/optimizer_state.h"

namespace torchamp {

class LateReport;

/// Notices that the program steps an optimizer which initialize was given, and not the one that it
/// returned. Nothing can stand in between: the masters must not follow such steps.
struct OwnSteps {
  std::optional<int64_t> count;  ///< of the states after the last step of Optimizer
  void* param = nullptr;         ///< the key of one of them; null: there were none
  const void* state = nullptr;   ///< that one: a load replaces it, a step does not
  bool has_stepped = false;      ///< whether there was one
  int64_t backwards = 0;         ///< before the first
  bool has_writes = false;       ///< the program has written parameters between those
};

/// One optimizer of a session.
struct WrappedOptimizer {
  /// The optimizer must outlive it. `masters`: its session's.
  WrappedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<core::Masters> masters);

  /// Whether its groups hold what `state` steps.
  bool is_current() const;
  /// False once it is known to be destroyed or moved.
  bool is_alive() const;
  /// Throws RuntimeError, which names the optimizer to step, if the program has stepped the wrapped
  /// one, as the counts in its states show.
  void check_own_steps();
  /// Takes those counts as they are now.
  void note_count();
  /// Notes whether the program has written parameters since their masters last followed.
  void note_writes();
  /// Makes states of masters float32: those made before initialize, or loaded, may have 16 bits.
  void widen_states() const;
  /// Whether it has states that widen_states() leaves as they are, of masters.
  bool has_unknown_states() const;

  /// Kept alive, if initialize was given it to own; else null.
  std::shared_ptr<torch::optim::Optimizer> owned = nullptr;
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
  OwnSteps own_steps = {};

 private:
  /// Whether its states are others than those counted, as after a load.
  bool has_other_states() const;
};

}  // namespace torchamp

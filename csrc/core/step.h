// Stage 7, around one step: both languages' optimizers hold one.
#pragma once

#include <memory>
#include <vector>

#include "core/optimizer_state.h"

namespace torchamp::core {

/// One step of one optimizer: begin(), the step unless it is to be skipped, finish(). Without
/// finish(), as after an exception, its destructor copies what was stepped to the model.
class TORCHAMP_API Step {
 public:
  /// `scalers` scale its losses and must outlive it. writes_model: the optimizer writes the model
  /// itself.
  Step(std::shared_ptr<OptimizerState> state, std::vector<LossScaler*> scalers, bool writes_model)
      : state_(std::move(state)), scalers_(std::move(scalers)), writes_model_(writes_model) {}
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  /// Synchronizes masters and model, and gives masters their grads. Throws RuntimeError, which
  /// names `function`, and changes nothing, while grads are scaled or stray.
  void begin(const char* function);
  /// Ends it, taken or skipped: copies the masters to the model, and drops their grads.
  void finish();

 private:
  void leave();

  std::shared_ptr<OptimizerState> state_;
  std::vector<LossScaler*> scalers_;
  bool writes_model_;
  bool is_open_ = false;
};

}  // namespace torchamp::core

// Stage 7, around one step: both languages' optimizers hold one.
#pragma once

#include <memory>
#include <vector>

#include "core/borrow.h"
#include "core/optimizer_state.h"

namespace torchamp::core {

/// One step of one optimizer: begin(), the step unless it is to be skipped, finish(). From begin()
/// on the parameters are their masters, except for an optimizer that writes the model itself.
/// Without finish(), as after an exception, its destructor gives the model what was stepped, and
/// the grads stay.
class TORCHAMP_API Step {
 public:
  /// `scalers` scale its losses and must outlive it. writes_model: the optimizer steps the masters
  /// and writes the model itself, and borrows nothing.
  Step(std::shared_ptr<OptimizerState> state, std::vector<LossScaler*> scalers, bool writes_model)
      : state_(std::move(state)), scalers_(std::move(scalers)), writes_model_(writes_model) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  /// Synchronizes masters and model, and lends the parameters masters and grads. Throws
  /// RuntimeError, which names `function`, and changes nothing, while grads are scaled or stray.
  void begin(const char* function);
  /// Gives the model what was stepped. The grads stay: of a closure, before begin() again, or of
  /// what steps nothing.
  void pause();
  /// Ends it, taken or skipped: the model gets what was stepped, and the grads are used.
  /// `overflowed`: whether they are to be skipped, where the host knows.
  void finish(std::optional<bool> overflowed = {});

 private:
  std::shared_ptr<OptimizerState> state_;
  std::vector<LossScaler*> scalers_;
  bool writes_model_;
  std::unique_ptr<Borrow> borrow_;
};

}  // namespace torchamp::core

// Loan: what the program's own code finds in parameters, beside steps.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/borrow.h"
#include "core/optimizer_state.h"

namespace torchamp::core {

/// Lends parameters the contents of their masters outside of a step, which it does not end. Grads
/// of an open backward, scaled ones and strays stay as they are. Its destructor ends it.
class TORCHAMP_API Loan {
 public:
  /// To a method of the optimizer: grads that the next step uses are float32 meanwhile.
  explicit Loan(std::shared_ptr<OptimizerState> state);
  /// To a program: all of one initialize, whose grads stay as they are. `cast`: other 16-bit
  /// tensors of its models, which become float32.
  Loan(std::shared_ptr<const Masters> masters, std::vector<at::Tensor> cast);
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  /// Synchronizes masters and model, and lends, unless it does. Throws RuntimeError for grads that
  /// a step is to unscale, and that were written.
  void begin();
  /// Gives the model what was written, rounded, and grads back that were not written.
  void end();

 private:
  std::shared_ptr<OptimizerState> state_;  ///< null: to a program
  std::shared_ptr<const Masters> masters_;
  std::vector<at::Tensor> cast_;
  std::optional<Borrow> borrow_;
};

}  // namespace torchamp::core

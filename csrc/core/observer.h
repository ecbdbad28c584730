// Observer: learns of backwards and steps, and is no part of them.
#pragma once

#include <torchamp/detail/export.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torchamp {

class BackwardReport;
class LossScaler;

namespace core {

/// One backward that its optimizer's next step depends on. Reports are null in a captured graph.
struct EndedBackward {
  int64_t loss_id = 0;
  std::shared_ptr<const BackwardReport> end;      ///< of its grads, on all ranks
  std::shared_ptr<const BackwardReport> weights;  ///< of the optimizer's parameters
  bool skips = true;  ///< whether an overflow skips the step; not under a fixed scale
  std::shared_ptr<const BackwardReport> here = nullptr;  ///< if ranks agree: of this one alone
};

/// Observes what an OptimizerState does, in the thread that does it.
class TORCHAMP_API Observer {
 public:
  virtual ~Observer() = default;
  virtual void after_backward(EndedBackward backward) = 0;
  /// The backwards since the last step do not count any more.
  virtual void forget_backwards() = 0;
  /// After a step of those backwards, taken or skipped. `scalers`: of its losses.
  virtual void after_step(const std::vector<LossScaler*>& scalers) = 0;
};

}  // namespace core
}  // namespace torchamp

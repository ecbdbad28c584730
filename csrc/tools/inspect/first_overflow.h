// Finds the first op that makes inf or NaN of finite inputs.
#pragma once

#include <torchamp/overflow_trace.h>

#include <memory>
#include <mutex>
#include <optional>

#include "inspect/op_watch.h"

namespace torchamp::inspect {

/// An op whose arguments have inf, such as masked_fill's, is none that overflows.
class FirstOverflow : public OpObserver {
 public:
  std::unique_ptr<at::ObserverContext> before(const WatchedOp& op) override;
  void after(const WatchedOp& op, const at::ObserverContext* begun) override;

  std::optional<OverflowOrigin> origin() const;
  /// Looks for the next one.
  void reset();

 private:
  mutable std::mutex mutex_;
  std::optional<OverflowOrigin> origin_;
};

/// Prints it without its remedy().
std::ostream& print_op(std::ostream& stream, const OverflowOrigin& origin);

/// What its message ends with.
const char* remedy(const OverflowOrigin& origin);

}  // namespace torchamp::inspect

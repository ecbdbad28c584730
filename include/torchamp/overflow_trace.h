// Where an overflow comes from: the first op that made inf or NaN.
#pragma once

#include <c10/core/ScalarType.h>
#include <torchamp/detail/export.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

namespace torchamp {
/// @addtogroup step
/// @{

/// The first op that made inf or NaN of finite inputs.
struct OverflowOrigin {
  std::string op;                     ///< ATen's name; "_to_copy" is a cast
  std::string scope;                  ///< the innermost RECORD_USER_SCOPE, in a backward its op's
  bool is_backward = false;           ///< else in a forward, or outside of both
  bool is_nan = false;                ///< else inf
  at::ScalarType dtype = at::kFloat;  ///< of what it made
  double magnitude = 0;               ///< the largest of its inputs
  bool is_reduced = false;            ///< a float16 product that is finite with float32 sums
};

/// One line.
TORCHAMP_API std::ostream& operator<<(std::ostream& stream, const OverflowOrigin& origin);

/// While it lives, looks at what every op of the process returns, and waits for the device at each:
/// for the iterations in question alone.
///
///     amp::OverflowTrace trace;
///     { RECORD_USER_SCOPE("head"); x = net->head(x); }       // optional: to know where
///     amp::scale_loss(loss_of(x), optimizer).backward();
///     if (trace.origin()) std::cout << *trace.origin() << '\n';
///
/// An op whose arguments have inf, such as masked_fill's, does not count as an overflow. A float16
/// product that overflows is computed again in float32, on copies of its inputs.
class TORCHAMP_API OverflowTrace {
 public:
  /// Throws RuntimeError if there is another one, and during a preflight.
  OverflowTrace();
  ~OverflowTrace();
  OverflowTrace(const OverflowTrace&) = delete;
  OverflowTrace& operator=(const OverflowTrace&) = delete;

  /// The first since construction or reset(); empty if there was none.
  std::optional<OverflowOrigin> origin() const;
  /// Looks for the next one.
  void reset();

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

/// @}

}  // namespace torchamp

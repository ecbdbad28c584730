// Float32 weights outside of steps.
#pragma once

#include <torchamp/initialize.h>

#include <memory>

namespace torchamp {
namespace core {
class Loan;
}  // namespace core

/// @addtogroup model
/// @{

/// A scope in which the parameters of models that initialize returned are float32, with the values
/// of their masters, for code that works on weights outside of steps: averages, loaders of its own,
/// pruning. Parameters and buffers stay the same tensors, with their views, and forwards compute in
/// float32. What is written to them reaches masters and models, also by `.data()`; after the scope
/// the models have it rounded. This holds for all models and optimizers of the same initialize.
///
/// A step within it is one of its own. A backward within it leaves grads in the dtype that they
/// have outside. A forward and its backward belong on one side: between them, saved activations and
/// weights have two dtypes, for which some layers throw LibTorch's errors. At O0, O1 and O4, within
/// another Float32Params and after release it does nothing. At O3, without masters, it widens the
/// parameters, and rounds them again. Another thread finds float32 too.
class TORCHAMP_API Float32Params {
 public:
  /// amped: what initialize returned, or a Model of it.
  template <class T, detail::IfAmped<T> = 0>
  explicit Float32Params(const T& amped) : Float32Params(amped.amp()) {}
  /// Lends the models of an Amp.
  explicit Float32Params(std::shared_ptr<Amp> amp);
  ~Float32Params();
  Float32Params(const Float32Params&) = delete;
  Float32Params& operator=(const Float32Params&) = delete;

 private:
  std::shared_ptr<Amp> amp_;
  std::shared_ptr<core::Loan> loan_;  ///< null: it does nothing
};

/// @}

}  // namespace torchamp

// Borrow: what an optimizer finds in the parameters that it steps.
#pragma once

#include <vector>

#include "core/param.h"

namespace torchamp::core {

/// Exchanges the contents of parameters for those of their masters, so that an optimizer which
/// holds the parameters steps the masters. Identity, attributes, autograd's hooks and views stay.
/// Those without a master, and those that are borrowed already, stay as they are.
class TORCHAMP_API Borrow {
 public:
  explicit Borrow(ParamList params) : params_(std::move(params)) {}
  ~Borrow();
  Borrow(const Borrow&) = delete;
  Borrow& operator=(const Borrow&) = delete;

  /// Parameters become float32, with the float32 grads that the next step uses.
  void enter();
  /// Gives the 16-bit contents back, rounded from the masters in one launch, and the grads as they
  /// were, unless they were written or replaced.
  void leave();

 private:
  struct Lent {
    std::shared_ptr<Param> param;
    at::Tensor contents;  ///< the model's
    at::Tensor grad;      ///< the model's
    Mark lent;            ///< its grad while it is borrowed
  };

  std::vector<at::Tensor> float32_grads() const;

  ParamList params_;
  std::vector<Lent> lent_;
};

}  // namespace torchamp::core

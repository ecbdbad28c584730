// Borrow: what an optimizer finds in the parameters that it steps.
#pragma once

#include <cstdint>
#include <vector>

#include "core/param.h"

namespace torchamp::core {

/// Which grads are float32 while parameters are lent. kStep: those that the next step uses, and the
/// others are hidden. kUsable: those too, and the others stay. kNone: all stay.
enum class LentGrads : uint8_t { kStep, kUsable, kNone };

/// Exchanges the contents of parameters for those of their masters, so that an optimizer which
/// holds the parameters steps the masters. Identity, attributes, autograd's hooks and views stay.
/// Parameters without a master, or borrowed already, stay as they are.
class TORCHAMP_API Borrow {
 public:
  Borrow(ParamList params, LentGrads grads) : params_(std::move(params)), grads_(grads) {}
  ~Borrow();
  Borrow(const Borrow&) = delete;
  Borrow& operator=(const Borrow&) = delete;

  /// Parameters become float32, and so do `cast`, 16-bit tensors without a master.
  void enter(at::TensorList cast = {});
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

  /// A tensor without a master.
  struct Widened {
    at::Tensor tensor, contents, wide;
  };

  std::vector<at::Tensor> lent_grads() const;

  ParamList params_;
  LentGrads grads_;
  std::vector<Lent> lent_;
  std::vector<Widened> widened_;
};

}  // namespace torchamp::core

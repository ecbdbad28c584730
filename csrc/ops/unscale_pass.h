// The destination of each grad of a backward, and the pass that writes all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "ops/borrowed.h"
#include "ops/finish_backward.h"

namespace torchamp {

/// The dense values of a sparse grad, for ops; a dense grad itself.
at::Tensor values_of(const at::Tensor& grad);
/// `at::empty_like` of a dense tensor, of another dtype, in half the time.
at::Tensor empty_like(const at::Tensor& tensor, at::ScalarType dtype);

/// Grads by the number of their parameter: checked, unscaled afresh, or unscaled onto others.
class UnscalePass {
 public:
  explicit UnscalePass(size_t count) : count_(count) {}

  /// Checks `scaled`, which the caller keeps alive.
  void check(size_t i, const at::Tensor& scaled);
  /// result = scaled / loss_scale.
  void write(size_t i, const at::Tensor& scaled, const at::Tensor& result);
  /// result += scaled / loss_scale.
  void accumulate(size_t i, const at::Tensor& scaled, const at::Tensor& result);

  /// Whether the last pass is the one that checks, and so can compute the norm.
  bool checks_last() const { return onto_.is_empty(); }
  /// In one pass over the grads, unless some are fresh and others accumulate.
  void run(const at::Tensor& loss_scale, const at::Tensor& overflow_flags,
           const BackwardEnd& end) const;

 private:
  /// Lists as long as the parameters', with holes; empty without an element.
  struct Lists {
    bool is_empty() const { return scaled.empty(); }

    Borrowed scaled;
    Borrowed results;
  };

  void add(Borrowed& list, size_t i, const at::Tensor& tensor);
  void keep(Borrowed& list, size_t i, const at::Tensor& grad);

  size_t count_;
  Lists fresh_;                   ///< results are overwritten
  Lists onto_;                    ///< results are added to, in place
  std::vector<at::Tensor> kept_;  ///< owns what the lists borrow
};

}  // namespace torchamp

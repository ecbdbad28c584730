// Reads what autograd knows of a tensor without the calls into its library, and remembers it.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace torchamp {

/// `tensor.grad()` of a leaf; at::Tensor's asks autograd whether it is one.
inline const at::Tensor& grad_of(const at::Tensor& leaf) {
  return std::as_const(*leaf.unsafeGetTensorImpl()).grad();
}

/// `tensor._version()`, which in-place ops increment.
inline uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// A tensor as it was: which one, and in which version. Writes that bypass version counters
/// (`.data`, numpy) do not change it.
class Mark {
 public:
  /// Marks no tensor.
  Mark() = default;
  explicit Mark(const at::Tensor& tensor)
      : tensor_(tensor.getIntrusivePtr()), version_(tensor.defined() ? version_of(tensor) : 0) {}

  /// Whether `now` is that tensor, whatever has been written to it; or none, as then.
  bool is_same(const at::Tensor& now) const {
    return tensor_._unsafe_get_target() == now.unsafeGetTensorImpl();
  }
  /// Whether `now` is that tensor, and nothing has been written to it.
  bool is_unchanged(const at::Tensor& now) const {
    return is_same(now) && (!now.defined() || version_ == version_of(now));
  }

 private:
  /// Weak: it keeps the address from being used again, but not the memory.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_{
      at::Tensor().getIntrusivePtr()};
  uint32_t version_ = 0;
};

}  // namespace torchamp

// Lists of tensors that are not owned.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchamp {

/// A list of tensors that the caller keeps alive. It changes no reference counts: for thousands of
/// tensors that would cost as many cache misses, twice.
class Borrowed {
 public:
  explicit Borrowed(size_t length = 0) : tensors_(length) {}
  ~Borrowed() {
    for (at::Tensor& tensor : tensors_) tensor.unsafeReleaseTensorImpl();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  void set(size_t i, const at::Tensor& tensor) {
    c10::MaybeOwnedTraits<at::Tensor>::assignBorrow(tensors_[i], tensor);
  }

  void resize(size_t length) { tensors_.resize(length); }
  bool empty() const { return tensors_.empty(); }

  const at::Tensor& operator[](size_t i) const { return tensors_[i]; }
  operator at::TensorList() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace torchamp

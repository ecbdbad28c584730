// Tensors that stay from call to call.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "math/types.h"

namespace torchamp {

/// build_plan's cache for tensors that stay from call to call, which avoids reading their headers
/// again: thousands of them cost several cache misses each.
class KnownTensors {
 public:
  /// The entry of number `i` if it is still valid for `tensor` and can be walked together with
  /// `first`; else null.
  void* find(size_t i, const at::Tensor& tensor, const at::Tensor& first, DType& dtype) const;
  /// Several threads may cache different numbers.
  void learn(size_t i, const at::Tensor& tensor, DType dtype);
  void resize(size_t size) { entries_.resize(size); }

 private:
  struct Entry {
    /// Keeps the address, and not the memory, from being reused.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    const void* memory = nullptr;  ///< the storage's
    void* data = nullptr;
    int64 elements = -1;
    caffe2::TypeMeta type;
    int64 offset = 0;  ///< in the storage
    DType dtype = DType::kFloat32;
  };

  std::vector<Entry> entries_;
};

}  // namespace torchamp

// Tensors that stay from call to call.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "math/types.h"

namespace torchamp {

/// What build_plan learnt of tensors that stay from call to call, so as not to read their whole
/// headers again: of thousands, each is some cache misses. Holds on to the tensors' storages.
class KnownTensors {
 public:
  /// Where number `i` is, and how to read it, if `tensor` is still what was learnt and can be
  /// walked along with `first`; else null.
  void* find(size_t i, const at::Tensor& tensor, const at::Tensor& first, DType& dtype) const;
  /// Several threads may learn different numbers.
  void learn(size_t i, const at::Tensor& tensor, DType dtype);
  void resize(size_t size) { entries_.resize(size); }

 private:
  struct Entry {
    c10::Storage storage;
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

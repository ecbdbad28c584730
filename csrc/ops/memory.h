// Which tensors have memory that kernels can read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace torchamp {

/// Whether `impl`'s elements are in a storage of its own, wherever that is: not so for wrappers
/// (DTensors, FakeTensors, tensors of torch.func's transforms), nested and meta tensors.
inline bool has_memory(const c10::TensorImpl& impl) {
  if (!impl.has_storage() || impl.key_set().has(c10::DispatchKey::NestedTensor)) return false;
  c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
  return storage->_mutable_data_ptr_no_checks().get() != nullptr || impl.numel() == 0;
}

/// Whether `tensor` is one of torch.device("meta") or a FakeTensor: an op that is dispatched by one
/// runs no kernel.
inline bool is_meta(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return storage && storage.device().is_meta();
}

/// Throws a TypeError unless `tensor` is dense and has memory, or is meta where the op
/// `takes_meta`.
void check_memory(const char* op, const char* name, const at::Tensor& tensor, bool takes_meta);

/// Checks element `i` of the list `name`.
void check_memory(const char* op, const char* name, size_t i, const at::Tensor& tensor,
                  bool takes_meta);

}  // namespace torchamp

#include "ops/known_tensors.h"

namespace torchamp {

using at::Tensor;

/// `.data` gives a tensor another's storage, or another place in it, resizing the storage other
/// memory.
void* KnownTensors::find(size_t i, const Tensor& tensor, const Tensor& first, DType& dtype) const {
  const Entry& entry = entries_[i];
  const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const bool stayed = storage.unsafeGetStorageImpl() == entry.storage.unsafeGetStorageImpl() &&
                      storage && storage.data() == entry.memory &&
                      tensor.storage_offset() == entry.offset && tensor.dtype() == entry.type;
  if (!stayed || entry.elements != first.numel() || !first.is_contiguous()) return nullptr;
  dtype = entry.dtype;
  return entry.data;
}

void KnownTensors::learn(size_t i, const Tensor& tensor, DType dtype) {
  if (!tensor.is_contiguous()) return;
  const c10::Storage& storage = tensor.storage();
  entries_[i] = {storage,        storage.data(), tensor.data_ptr(),
                 tensor.numel(), tensor.dtype(), tensor.storage_offset(),
                 dtype};
}

}  // namespace torchamp

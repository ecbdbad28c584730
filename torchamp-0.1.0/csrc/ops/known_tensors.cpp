#include "ops/known_tensors.h"

namespace torchamp {

using at::Tensor;

/// `.data` gives a tensor another's storage, another place in it or other strides, resizing the
/// storage other memory.
void* KnownTensors::find(size_t i, const Tensor& tensor, const Tensor& first, DType& dtype) const {
  const Entry& entry = entries_[i];
  const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const bool stayed = storage.unsafeGetStorageImpl() == entry.storage._unsafe_get_target() &&
                      storage && storage.data() == entry.memory &&
                      tensor.storage_offset() == entry.offset && tensor.dtype() == entry.type;
  const bool covers = tensor.numel() == entry.elements && tensor.is_contiguous();
  const bool walks_along = first.numel() == entry.elements && first.is_contiguous();
  if (!stayed || !covers || !walks_along) return nullptr;
  dtype = entry.dtype;
  return entry.data;
}

void KnownTensors::learn(size_t i, const Tensor& tensor, DType dtype) {
  if (!tensor.is_contiguous()) return;
  const c10::Storage& storage = tensor.storage();
  entries_[i] = {storage.getWeakStorageImpl(),
                 storage.data(),
                 tensor.data_ptr(),
                 tensor.numel(),
                 tensor.dtype(),
                 tensor.storage_offset(),
                 dtype};
}

}  // namespace torchamp

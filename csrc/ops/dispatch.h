// How C++ entries reach the ops' registrations.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "cpu/parallel.h"

namespace torchamp {

/// A registered op, by its qualified name.
template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// Calls `op` where `tensor` lives, below autograd and autocast: parameters are written as data.
/// The dispatcher would look at every tensor of every list to learn the same.
template <class Signature, class... Args>
auto call(const c10::TypedOperatorHandle<Signature>& op, const at::Tensor& tensor, Args&&... args) {
  static const auto kMask = c10::DispatchKeySet(c10::DispatchKeySet::FULL) -
                            c10::autocast_dispatch_keyset -
                            c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto keys = c10::impl::computeDispatchKeySet(tensor.key_set(), kMask);
  return op.redispatch(keys, std::forward<Args>(args)...);
}

/// Kernels write through raw pointers, behind autograd's back; this tells it.
inline void mark_written(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

inline void mark_written(at::TensorList tensors) {
  constexpr int64 kWorthAThread = 1024;
  const auto count = static_cast<int64>(tensors.size());
  const int64 parts = std::max<int64>(1, count / kWorthAThread);
  cpu::parallel_for(parts, [&](int64 first, int64 last) {
    for (int64 i = first * count / parts; i < last * count / parts; ++i) mark_written(tensors[i]);
  });
}

}  // namespace torchamp

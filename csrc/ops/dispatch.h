// How ops are registered with PyTorch's dispatcher, for the graphs of torch.compile, and called
// through it where dispatch modes or fake tensors are to see them.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "backends/parallel.h"
#include "ops/memory.h"

namespace torchamp {

/// The op's name in a schema, "name(arguments) -> (results)".
inline std::string op_name(const std::string& schema) {
  return schema.substr(0, schema.find('('));
}

template <class Result, class... Args>
Result do_nothing(Args...) {
  return Result();
}

/// Registers `kernel` for every device. `on_meta` handles meta tensors: an op that writes in place
/// changes no shape.
template <class Result, class... Args>
void define(torch::Library& library, const char* schema, Result (*kernel)(Args...),
            Result (*on_meta)(Args...) = do_nothing<Result, Args...>) {
  const std::string name = op_name(schema);
  library.def(schema);
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, on_meta));
}

/// Throws inside of torch.func's transforms and torch.vmap, which have no rule for ops that write.
inline void check_outside_transforms(const char* schema) {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  TORCH_CHECK(
      !included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode), op_name(schema),
      ": expected a call outside of torch.vmap and torch.func's transforms, got one inside");
}

inline bool has_undefined(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return !tensor.defined(); });
}

/// An argument that is no list of tensors has none.
template <class Arg>
std::enable_if_t<!std::is_convertible_v<const Arg&, at::TensorList>, bool> has_undefined(
    const Arg&) {
  return false;
}

/// Whether an op's call goes to the device's kernel: no dispatch mode, subclass of tensors or meta
/// device comes first.
inline bool go_to_kernel(c10::DispatchKeySet keys) {
  const c10::DispatchKey first = keys.highestPriorityTypeId();
  return first != c10::DispatchKey::Meta &&
         c10::runtimeDispatchKeySetHas(c10::DispatchKey::CompositeExplicitAutograd, first);
}

/// Calls `kernel`, below autograd and autocast: parameters are written as data. Where something is
/// to see the call, calls the op of the schema, a function of type Op, with `args`. Both run on the
/// device of `tensor`: the dispatcher would inspect every tensor of every list to find the same.
/// Dispatch modes do not see calls with undefined tensors in lists: Python has none.
template <class Op, class Kernel, class... Args>
auto dispatch(const char* schema, const at::Tensor& tensor, const Kernel& kernel, Args&&... args) {
  check_outside_transforms(schema);
  static const auto kMask = c10::DispatchKeySet(c10::DispatchKeySet::FULL) -
                            c10::autocast_dispatch_keyset -
                            c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto keys = c10::impl::computeDispatchKeySet(tensor.key_set(), kMask);
  if (keys.has_any(c10::python_ks) && (has_undefined(args) || ...)) keys = keys - c10::python_ks;
  if (go_to_kernel(keys)) return kernel();
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(("torchamp::" + op_name(schema)).c_str(), "");
  return op.template typed<Op>().redispatch(keys, std::forward<Args>(args)...);
}

/// Dispatches to a kernel with the op's arguments.
template <auto kKernel, class... Args>
auto dispatch(const char* schema, const at::Tensor& tensor, Args&&... args) {
  return dispatch<std::remove_pointer_t<decltype(kKernel)>>(
      schema, tensor, [&] { return kKernel(args...); }, args...);
}

/// Calls `kernel`, of no op, in the same way, unless `tensor` is meta: nothing else sees the call.
template <class Kernel>
void run_below_autograd(const char* function, const at::Tensor& tensor, const Kernel& kernel) {
  check_outside_transforms(function);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!is_meta(tensor)) kernel();
}

/// Kernels write through raw pointers, bypassing autograd; this increments the version counters.
inline void mark_written(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

inline void mark_written(at::TensorList tensors) {
  constexpr int64 kWorthAThread = 1024;
  const auto count = static_cast<int64>(tensors.size());
  const int64 parts = std::max<int64>(1, count / kWorthAThread);
  parallel_for(parts, [&](int64 first, int64 last) {
    for (int64 i = first * count / parts; i < last * count / parts; ++i) mark_written(tensors[i]);
  });
}

}  // namespace torchamp

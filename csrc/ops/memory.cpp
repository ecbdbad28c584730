#include "ops/memory.h"

#include <c10/util/Exception.h>

#include <string>

namespace torchamp {
namespace {

using at::Tensor;
using c10::DispatchKey;

/// What a tensor without memory is.
const char* kind_of(const Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  if (keys.has(DispatchKey::FuncTorchBatched)) return "a tensor of torch.vmap";
  if (keys.has(DispatchKey::FuncTorchGradWrapper)) return "a tensor of torch.func";
  if (keys.has(DispatchKey::Functionalize)) return "a functional tensor";
  if (keys.has(DispatchKey::NestedTensor)) return "a nested tensor";
  const bool is_python = keys.has(DispatchKey::Python);
  if (is_meta(tensor)) return is_python ? "a FakeTensor" : "a meta tensor";
  if (!is_python) return "one whose storage is empty";
  return "a subclass that wraps others; of a DTensor, pass .to_local()";
}

bool is_taken(const Tensor& tensor, bool takes_meta) {
  if (tensor.layout() != at::kStrided) return false;
  return (takes_meta && is_meta(tensor)) || has_memory(*tensor.unsafeGetTensorImpl());
}

void refuse(const char* op, const std::string& name, const Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, op, ": expected ", name,
                   " to be dense, got layout ", tensor.layout());
  TORCH_CHECK_TYPE(false, op, ": expected ", name, " to have memory of its own, got ",
                   kind_of(tensor));
}

}  // namespace

void check_memory(const char* op, const char* name, const Tensor& tensor, bool takes_meta) {
  if (!is_taken(tensor, takes_meta)) refuse(op, name, tensor);
}

void check_memory(const char* op, const char* name, size_t i, const Tensor& tensor,
                  bool takes_meta) {
  if (!is_taken(tensor, takes_meta)) refuse(op, c10::str(name, "[", i, "]"), tensor);
}

}  // namespace torchamp

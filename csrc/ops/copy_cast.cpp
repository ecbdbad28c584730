#include <torchamp/ops.h>

#include "ops/checks.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"
#include "ops/plan_builder.h"

namespace torchamp::ops {
namespace {

using at::Tensor;
using at::TensorList;

constexpr const char* kCopyCastSchema =
    "copy_cast(Tensor[] master_params, Tensor(a!)[] model_params) -> ()";

/// One of the same type at the same place is the same tensor, perhaps of other strides, which copy_
/// refuses.
bool is_same(const Tensor& master, const Tensor& model) {
  return model.is_alias_of(master) && model.dtype() == master.dtype() &&
         model.storage_offset() == master.storage_offset();
}

void run_copy_cast(TensorList master_params, TensorList model_params) {
  const DeviceKernels kernels(first_defined(master_params).device());
  const Work work = build_plan(
      "copy_cast", {{"master_params", master_params}, written("model_params", model_params)},
      kernels);
  if (work.plan.tensors() > 0) kernels.run(cpu::copy_cast, cuda::copy_cast, work.plan);
  for (const int64_t i : work.rest) {
    const Tensor &master = master_params[i], &model = model_params[i];
    if (!is_same(master, model)) model.copy_(master);
  }
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kCopyCastSchema, copy_cast);
}

}  // namespace

void copy_cast(TensorList master_params, TensorList model_params) {
  const Tensor& first = dispatched_by("copy_cast", "master_params", master_params);
  dispatch<run_copy_cast>(kCopyCastSchema, first, master_params, model_params);
  mark_written(model_params);
}

}  // namespace torchamp::ops

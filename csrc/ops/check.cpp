#include <torchamp/ops.h>

#include "aten/fallback.h"
#include "ops/checks.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"
#include "ops/plan_builder.h"

namespace torchamp::ops {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kCheckSchema =
    "check(Tensor[] tensors, Tensor(a!) found_inf, Tensor(b!)? found_inf_per_tensor=None) -> ()";

void run_check(TensorList tensors, const Tensor& found_inf, const OptionalTensor& per_tensor) {
  const DeviceKernels kernels(found_inf.device());
  const Work work = build_plan("check", {{"tensors", tensors}}, kernels);
  if (work.plan.tensors() > 0) {
    kernels.run(cpu::check, cuda::check, work.plan, make_flags(found_inf, per_tensor));
  }
  const aten::FlagTensors flags{found_inf, per_tensor};
  for (const int64_t i : work.rest) flags.check(tensors[i], i);
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kCheckSchema, check);
}

}  // namespace

void check(TensorList tensors, const Tensor& found_inf,
           const OptionalTensor& found_inf_per_tensor) {
  check_flags("check", found_inf, found_inf_per_tensor, tensors.size());
  dispatch<run_check>(kCheckSchema, found_inf, tensors, found_inf, found_inf_per_tensor);
  mark_written(found_inf);
}

}  // namespace torchamp::ops

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

constexpr const char* kAxpbySchema =
    "axpby(float a, Tensor[] x, float b, Tensor[] y, Tensor(a!)[] outputs, Tensor(b!) found_inf, "
    "int checked=3, Tensor(c!)? found_inf_per_tensor=None) -> ()";

static_assert(static_cast<int>(Check::kX) == static_cast<int>(Checked::kX));
static_assert(static_cast<int>(Check::kY) == static_cast<int>(Checked::kY));
static_assert(static_cast<int>(Check::kBoth) == static_cast<int>(Checked::kBoth));

void run_axpby(double a, TensorList x, double b, TensorList y, TensorList outputs,
               const Tensor& found_inf, int64_t which, const OptionalTensor& per_tensor) {
  const auto checked = static_cast<Checked>(which);
  const DeviceKernels kernels(found_inf.device());
  const Work work = build_plan("axpby", {{"x", x}, {"y", y}, written("outputs", outputs)}, kernels);
  if (work.plan.tensors() > 0) {
    kernels.run(cpu::axpby, cuda::axpby, work.plan, static_cast<float>(a), static_cast<float>(b),
                checked, make_flags(found_inf, per_tensor));
  }
  const aten::FlagTensors flags{found_inf, per_tensor};
  for (const int64_t i : work.rest) {
    if (checked != Checked::kY) flags.check(x[i], i);
    if (checked != Checked::kX) flags.check(y[i], i);
    const auto wide = aten::wide_type({x[i], y[i]});
    flags.write(x[i].to(wide).mul(a).add(y[i].to(wide).mul(b)), outputs[i], i);
  }
}

void checked_axpby(double a, TensorList x, double b, TensorList y, TensorList outputs,
                   const Tensor& found_inf, int64_t which, const OptionalTensor& per_tensor) {
  axpby(a, x, b, y, outputs, found_inf, static_cast<Check>(which), per_tensor);
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kAxpbySchema, checked_axpby);
}

}  // namespace

void axpby(double a, TensorList x, double b, TensorList y, TensorList outputs,
           const Tensor& found_inf, Check checked, const OptionalTensor& found_inf_per_tensor) {
  check_flags("axpby", found_inf, found_inf_per_tensor, x.size());
  dispatch<run_axpby>(kAxpbySchema, found_inf, a, x, b, y, outputs, found_inf,
                      static_cast<int64_t>(checked), found_inf_per_tensor);
  mark_written(outputs);
  mark_written(found_inf);
}

}  // namespace torchamp::ops

#include <ATen/ops/full.h>
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

constexpr const char* kScaleSchema =
    "scale(Tensor[] inputs, Tensor(a!)[] outputs, float scale, Tensor(b!) found_inf, "
    "Tensor(c!)? found_inf_per_tensor=None) -> ()";

void run_scale(TensorList inputs, TensorList outputs, double factor, const Tensor& found_inf,
               const OptionalTensor& per_tensor) {
  const DeviceKernels kernels(found_inf.device());
  const Work work = build_plan("scale", {{"inputs", inputs}, written("outputs", outputs)}, kernels);
  if (work.plan.tensors() > 0) {
    const Tensor scalar = at::full({}, static_cast<float>(factor), found_inf.options());
    const InvScale by{scalar.const_data_ptr<float>(), /*is_loss_scale=*/false};
    kernels.run(cpu::unscale, cuda::unscale, work.plan, by, /*accumulate=*/false,
                make_flags(found_inf, per_tensor));
  }
  const aten::FlagTensors flags{found_inf, per_tensor};
  for (const int64_t i : work.rest) {
    flags.check(inputs[i], i);
    flags.write(inputs[i].to(aten::wide_type({inputs[i]})).mul(factor), outputs[i], i);
  }
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kScaleSchema, scale);
}

}  // namespace

void scale(TensorList inputs, TensorList outputs, double scale, const Tensor& found_inf,
           const OptionalTensor& found_inf_per_tensor) {
  check_flags("scale", found_inf, found_inf_per_tensor, inputs.size());
  dispatch<run_scale>(kScaleSchema, found_inf, inputs, outputs, scale, found_inf,
                      found_inf_per_tensor);
  mark_written(outputs);
  mark_written(found_inf);
}

}  // namespace torchamp::ops

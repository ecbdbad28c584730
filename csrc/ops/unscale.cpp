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

constexpr const char* kUnscaleSchema =
    "unscale(Tensor[] scaled_grads, Tensor(a!)[] master_grads, Tensor inv_scale, "
    "Tensor(b!) found_inf, bool accumulate=False, Tensor(c!)? found_inf_per_tensor=None) -> ()";

void run_unscale(TensorList scaled_grads, TensorList master_grads, const Tensor& inv_scale,
                 const Tensor& found_inf, bool accumulate, const OptionalTensor& per_tensor) {
  const DeviceKernels kernels(found_inf.device());
  const Work work = build_plan(
      "unscale", {{"scaled_grads", scaled_grads}, written("master_grads", master_grads)}, kernels);
  if (work.plan.tensors() > 0) {
    const InvScale factor{inv_scale.const_data_ptr<float>(), /*is_loss_scale=*/false};
    kernels.run(cpu::unscale, cuda::unscale, work.plan, factor, accumulate,
                make_flags(found_inf, per_tensor));
  }
  for (const int64_t i : work.rest) {
    aten::unscale(scaled_grads[i], master_grads[i], i, inv_scale, accumulate,
                  {found_inf, per_tensor});
  }
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kUnscaleSchema, unscale);
}

}  // namespace

void unscale(TensorList scaled_grads, TensorList master_grads, const Tensor& inv_scale,
             const Tensor& found_inf, bool accumulate, const OptionalTensor& found_inf_per_tensor) {
  check_flags("unscale", found_inf, found_inf_per_tensor, scaled_grads.size());
  check_scalar("unscale", "inv_scale", inv_scale, at::kFloat, found_inf);
  dispatch<run_unscale>(kUnscaleSchema, found_inf, scaled_grads, master_grads, inv_scale, found_inf,
                        accumulate, found_inf_per_tensor);
  mark_written(master_grads);
  mark_written(found_inf);
}

}  // namespace torchamp::ops

#include <torchamp/ops.h>

#include "aten/fallback.h"
#include "backends/scale_rule.h"
#include "ops/checks.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"

namespace torchamp::ops {
namespace {

using at::Tensor;

constexpr const char* kUpdateScaleSchema =
    "update_scale(Tensor(a!) loss_scale, Tensor(b!) growth_tracker, "
    "Tensor found_inf, float[] rule=[]) -> ()";

void run_update_scale(const Tensor& loss_scale, const Tensor& growth_tracker,
                      const Tensor& found_inf, at::ArrayRef<double> values) {
  const DeviceKernels kernels(loss_scale.device());
  const ScaleUpdate::Rule rule = to_rule(unpacked(values));
  if (!kernels.usable()) {
    return aten::update_scale(loss_scale, growth_tracker, found_inf, rule);
  }
  const ScaleUpdate scale{loss_scale.mutable_data_ptr<float>(),
                          growth_tracker.mutable_data_ptr<int32>(), rule};
  kernels.run(cpu::update_scale, cuda::update_scale, scale, found_inf.const_data_ptr<float>());
}

void checked_update_scale(const Tensor& loss_scale, const Tensor& growth_tracker,
                          const Tensor& found_inf, at::ArrayRef<double> rule) {
  TORCH_CHECK_VALUE(rule.empty() || rule.size() == std::tuple_size_v<PackedRule>,
                    "update_scale: expected a rule of ", std::tuple_size_v<PackedRule>,
                    " numbers, got ", rule.size());
  update_scale(loss_scale, growth_tracker, found_inf, rule.empty() ? ScaleRule() : unpacked(rule));
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kUpdateScaleSchema, checked_update_scale);
}

}  // namespace

void update_scale(const Tensor& loss_scale, const Tensor& growth_tracker, const Tensor& found_inf,
                  const ScaleRule& rule) {
  check_scalar("update_scale", "loss_scale", loss_scale, at::kFloat);
  check_scalar("update_scale", "growth_tracker", growth_tracker, at::kInt, loss_scale);
  check_scalar("update_scale", "found_inf", found_inf, at::kFloat, loss_scale);
  dispatch<run_update_scale>(kUpdateScaleSchema, loss_scale, loss_scale, growth_tracker, found_inf,
                             packed(rule));
  for (const Tensor& state : {loss_scale, growth_tracker}) mark_written(state);
}

}  // namespace torchamp::ops

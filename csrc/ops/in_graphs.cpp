// The ops under their public names, torch.ops.torchamp.check and so on: what the graphs of
// torch.compile call. They check their arguments, which the ops that dispatch() calls do not.
#include <ATen/ops/empty.h>
#include <torchamp/fused_step.h>
#include <torchamp/ops.h>

#include "backends/scale_rule.h"
#include "ops/dispatch.h"

namespace torchamp::ops {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;
using Norms = std::tuple<Tensor, Tensor>;

void axpby_in_graph(double a, TensorList x, double b, TensorList y, TensorList outputs,
                    const Tensor& found_inf, int64_t checked, const OptionalTensor& per_tensor) {
  axpby(a, x, b, y, outputs, found_inf, static_cast<Check>(checked), per_tensor);
}

/// Without per_tensor the second is empty: no schema has an optional result.
Norms l2norm_in_graph(TensorList tensors, bool per_tensor) {
  auto [norm, norms] = l2norm(tensors, per_tensor);
  return {norm, norms.defined() ? norms : at::empty({0}, norm.options())};
}

at::TensorOptions on_meta() {
  return at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
}

Norms l2norm_on_meta(TensorList tensors, bool per_tensor) {
  const auto length = per_tensor ? static_cast<int64_t>(tensors.size()) : 0;
  return {at::empty({}, on_meta()), at::empty({length}, on_meta())};
}

Tensor check_l2norm_on_meta(TensorList, const Tensor&, const OptionalTensor&) {
  return at::empty({}, on_meta());
}

void update_scale_in_graph(const Tensor& loss_scale, const Tensor& growth_tracker,
                           const Tensor& hysteresis_tracker, const Tensor& found_inf,
                           at::ArrayRef<double> rule) {
  TORCH_CHECK_VALUE(rule.size() == std::tuple_size_v<PackedRule>,
                    "update_scale: expected a rule of ", std::tuple_size_v<PackedRule>,
                    " numbers, got ", rule.size());
  update_scale(loss_scale, growth_tracker, hysteresis_tracker, found_inf, unpacked(rule));
}

void fused_step_in_graph(int64_t algorithm, TensorList grads, TensorList params, TensorList states,
                         const Tensor& steps, const Tensor& hyper, const Tensor& groups,
                         TensorList model_params, const OptionalTensor& grad_factor,
                         const OptionalTensor& skip, const OptionalTensor& param_norms,
                         const OptionalTensor& update_norms, const OptionalTensor& norm_averages,
                         bool stochastic_rounding) {
  fused_step(static_cast<StepAlgorithm>(algorithm), {grads, params, states, model_params},
             {steps, hyper, groups, grad_factor, skip, param_norms, update_norms, norm_averages,
              stochastic_rounding});
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m,
         "scale(Tensor[] inputs, Tensor(a!)[] outputs, float scale, Tensor(b!) found_inf, "
         "Tensor(c!)? found_inf_per_tensor=None) -> ()",
         scale);
  define(m,
         "unscale(Tensor[] scaled_grads, Tensor(a!)[] master_grads, Tensor inv_scale, "
         "Tensor(b!) found_inf, bool accumulate=False, Tensor(c!)? found_inf_per_tensor=None) "
         "-> ()",
         unscale);
  define(m,
         "axpby(float a, Tensor[] x, float b, Tensor[] y, Tensor(a!)[] outputs, "
         "Tensor(b!) found_inf, int checked=3, Tensor(c!)? found_inf_per_tensor=None) -> ()",
         axpby_in_graph);
  define(m,
         "check(Tensor[] tensors, Tensor(a!) found_inf, "
         "Tensor(b!)? found_inf_per_tensor=None) -> ()",
         check);
  define(m,
         "check_l2norm(Tensor[] tensors, Tensor(a!) found_inf, "
         "Tensor(b!)? found_inf_per_tensor=None) -> Tensor",
         check_l2norm, check_l2norm_on_meta);
  define(m, "l2norm(Tensor[] tensors, bool per_tensor=False) -> (Tensor, Tensor)", l2norm_in_graph,
         l2norm_on_meta);
  define(m, "copy_cast(Tensor[] master_params, Tensor(a!)[] model_params) -> ()", copy_cast);
  define(m,
         "update_scale(Tensor(a!) loss_scale, Tensor(b!) growth_tracker, "
         "Tensor(c!) hysteresis_tracker, Tensor found_inf, float[] rule) -> ()",
         update_scale_in_graph);
  define(m,
         "fused_step(int algorithm, Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] states, "
         "Tensor(c!) steps, Tensor hyper, Tensor groups, Tensor(d!)[] model_params, "
         "Tensor? grad_factor=None, Tensor? skip=None, Tensor? param_norms=None, "
         "Tensor? update_norms=None, Tensor(e!)? norm_averages=None, "
         "bool stochastic_rounding=False) -> ()",
         fused_step_in_graph);
}

}  // namespace
}  // namespace torchamp::ops

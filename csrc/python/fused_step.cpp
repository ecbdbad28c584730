#include <torchamp/fused_step.h>

#include <algorithm>
#include <cctype>

#include "ops/step_rules.h"
#include "python/bindings.h"
#include "python/tensor_list.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kFusedStep = R"(An optimizer's step on lists of tensors, in one pass.

Args:
    algorithm: StepAlgorithm.
    grads: list of floating tensors, scaled or not; positions of None are skipped.
    params: list; float32 masters, or the model's own.
    states: list: the first state of each position, then the second of each, ...
    steps: float32 [positions], the steps done so far; incremented.
    hyper: float64 [groups, 12], on the CPU or on the device of steps, where it is read when the
        step runs: the columns of the algorithm's hyperparameters, the rest ignored.
    groups: int32 [positions], on the CPU: each one's row of hyper.
    model_params: list, written: params, rounded; None, or empty, if there is none.
    grad_factor: float32 of one element that grads are multiplied by, or None.
    skip: float32 of one element, or None; unless 0 nothing is written.
    param_norms, update_norms, norm_averages: float32 [positions], if the algorithm reads them.
    stochastic_rounding: of bfloat16 params; bfloat16 states always are rounded stochastically.

The columns of hyper:

* ADAM: lr, beta1, beta2, eps, weight_decay, decoupled, maximize, bias_correction
* SGD, MOMENTUM: lr, momentum, dampening, weight_decay, nesterov, maximize, decay_after_momentum
* NOVOGRAD: lr, beta1, beta2, eps, weight_decay, maximize, bias_correction, decay_in_moment,
  averages_grads, starts_at_zero
* LAMB, LAMB_APPLY: lr, beta1, beta2, eps, weight_decay, decoupled, maximize, bias_correction,
  averages_grads, always_adapts, max_grad_norm

All other tensors are on one device, which nothing waits for. Errors are raised before anything is
written.

Raises:
    TypeError: for another dtype or layout, and for what is not a tensor.
    RuntimeError: where lengths, sizes or devices differ.)";

void step_lists(StepAlgorithm algorithm, const py::object& grads, const py::object& params,
                const py::object& states, const Tensor& steps, const Tensor& hyper,
                const Tensor& groups, const py::object& model_params,
                const OptionalTensor& grad_factor, const OptionalTensor& skip,
                const OptionalTensor& param_norms, const OptionalTensor& update_norms,
                const OptionalTensor& norm_averages, bool stochastic_rounding) {
  const auto list = [](const char* name, const py::object& tensors) {
    return tensor_list("fused_step", name, tensors);
  };
  const auto all_grads = list("grads", grads), all_params = list("params", params);
  const auto all_states = list("states", states), models = list("model_params", model_params);
  const py::gil_scoped_release unlocked;
  fused_step(algorithm, {all_grads, all_params, all_states, models},
             {steps, hyper, groups, grad_factor, skip, param_norms, update_norms, norm_averages,
              stochastic_rounding});
}

std::string capitals(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), ::toupper);
  return name;
}

void bind_algorithm(py::module_& module) {
  py::enum_<StepAlgorithm>(module, "StepAlgorithm", "What a fused step does to each element.")
#define TORCHAMP_VALUE(Name, name) .value(capitals(#name).c_str(), StepAlgorithm::k##Name)
      TORCHAMP_ALGORITHMS(TORCHAMP_VALUE);
#undef TORCHAMP_VALUE
}

}  // namespace

void bind_fused_step(py::module_& module) {
  bind_algorithm(module);
  auto ops_module = module.attr("ops").cast<py::module_>();
  ops_module.def("fused_step", &step_lists, kFusedStep, py::arg("algorithm"), py::arg("grads"),
                 py::arg("params"), py::arg("states"), py::arg("steps"), py::arg("hyper"),
                 py::arg("groups"), py::kw_only(), py::arg("model_params") = py::tuple(),
                 py::arg("grad_factor") = py::none(), py::arg("skip") = py::none(),
                 py::arg("param_norms") = py::none(), py::arg("update_norms") = py::none(),
                 py::arg("norm_averages") = py::none(), py::arg("stochastic_rounding") = false);
}

}  // namespace torchamp::python

#include "core/step.h"
#include "python/bindings.h"
#include "python/tensor_list.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kFusedStepper =
    R"(Parameters on one device that are stepped by one algorithm, with their states.

params: list of tensors. groups: for each, the row of hyperparameters that it belongs to. States are
created, zeros in state_dtype, when a parameter first has a grad. bfloat16 states are rounded
stochastically, and so are bfloat16 parameters with stochastic_rounding.)";

FusedStepper make_stepper(StepAlgorithm algorithm, const py::object& params,
                          std::vector<int64_t> groups, at::ScalarType state_dtype,
                          bool stochastic_rounding) {
  return FusedStepper(algorithm, tensor_list("FusedStepper", "params", params), std::move(groups),
                      {state_dtype, stochastic_rounding});
}

void set_state(FusedStepper& stepper, size_t i, const py::object& states, const Tensor& step_count,
               const OptionalTensor& norm_average) {
  stepper.set_state(i, tensor_list("FusedStepper.set_state", "states", states), step_count,
                    norm_average.value_or(Tensor()));
}

/// One call for all, which no signal of Python's divides.
void step_all(const std::vector<FusedStepper*>& steppers, const OptionalTensor& grad_factor,
              const OptionalTensor& skip) {
  for (FusedStepper* stepper : steppers) stepper->step({grad_factor, skip});
}

void step_masters(const std::vector<FusedStepper*>& steppers, core::OptimizerState& state,
                  const OptionalTensor& skip) {
  const Tensor& found_inf = state.overflows().found_inf();
  for (FusedStepper* stepper : steppers) {
    core::step_by(state, *stepper, found_inf.defined() ? found_inf : skip.value_or(Tensor()));
  }
}

}  // namespace

void bind_fused_stepper(py::module_& module) {
  py::class_<FusedStepper>(module, "FusedStepper", kFusedStepper)
      .def(py::init(&make_stepper), py::arg("algorithm"), py::arg("params"), py::arg("groups"),
           py::arg("state_dtype") = at::kFloat, py::arg("stochastic_rounding") = false)
      .def("states", &FusedStepper::states, py::arg("i"),
           "The states of params[i]; empty before its first step.")
      .def("step_count", &FusedStepper::step_count, py::arg("i"),
           "float32 scalar on the device, incremented by steps.")
      .def("norm_average", &FusedStepper::norm_average, py::arg("i"),
           "float32 scalar on the device; None where the algorithm keeps none.")
      .def("set_state", &set_state, py::arg("i"), py::arg("states"), py::arg("step_count"),
           py::arg("norm_average") = py::none(), "Adopts states, copies the others.")
      .def("set_lr", &FusedStepper::set_lr, Unlocked(), py::arg("group"), py::arg("lr"),
           "Makes a scalar tensor a group's learning rate, without reading it.")
      .def("new_states", &FusedStepper::new_states,
           "The parameters whose states were created since clear_new_states().")
      .def("clear_new_states", &FusedStepper::clear_new_states);
  module.def(
      "step_all", &step_all, Unlocked(), py::arg("steppers"), py::arg("grad_factor"),
      py::arg("skip"),
      "Steps parameters by their grads times grad_factor; nothing changes if skip is not 0.");
  module.def("step_masters", &step_masters, Unlocked(), py::arg("steppers"), py::arg("state"),
             py::arg("skip"),
             "Steps masters and model in one pass; nothing changes if a backward since the last "
             "step overflowed, or if skip is not 0.");
}

}  // namespace torchamp::python

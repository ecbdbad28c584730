#include <torchamp/detail/backward.h>

#include "core/late_report.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using core::Backward;
using core::Masters;
using core::OptimizerState;
using OptionalTensor = std::optional<at::Tensor>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

constexpr const char* kBackward = R"(One backward of one loss, for some optimizers.

The order of calls: scale(), prepare(), the backward, finish() or cancel(), which restores the grads
that prepare() set aside. Its destructor cancels it, if it is still open.)";

OptionalTensor found_inf(const OptimizerState& state) {
  const at::Tensor found = state.found_inf();
  return found.defined() ? OptionalTensor(found) : std::nullopt;
}

py::tuple telemetry(const OptimizerState& state) {
  const Telemetry& known = state.late_report().known();
  return py::make_tuple(known.steps, known.skipped_steps, known.stepped,
                        py::tuple(py::cast(known.loss_scales)));
}

std::unique_ptr<Backward> make_backward(std::vector<std::shared_ptr<OptimizerState>> states,
                                        LossScaler& scaler, int64_t loss_id, bool delay_unscale,
                                        bool delay_overflow_check) {
  return std::make_unique<Backward>(
      std::move(states), scaler, Backward::Options{loss_id, delay_unscale, delay_overflow_check});
}

void bind_optimizer_state(py::module_& module) {
  py::class_<OptimizerState, std::shared_ptr<OptimizerState>>(
      module, "OptimizerState",
      "One optimizer's masters, and the state that its next step depends on.")
      .def(py::init<std::shared_ptr<Masters>>(), py::arg("masters"))
      .def("add_param", &OptimizerState::add_param, py::arg("param"),
           "Records that the optimizer steps a master, or a parameter without one.")
      .def_property_readonly("grads_are_scaled", &OptimizerState::grads_are_scaled,
                             "Whether a backward is open, or its grads are still scaled.")
      .def("found_inf", &found_inf,
           "float32 scalar, not 0 if the next step is to be skipped; None: it is not.")
      .def("has_overflowed", &OptimizerState::has_overflowed, Unlocked(),
           "Whether the next step is to be skipped. Waits for the device.")
      .def("clear_overflows", &OptimizerState::clear_overflows)
      .def("begin_step", &OptimizerState::begin_step, Unlocked(), py::arg("function"),
           py::arg("adopts_data_writes"),
           "Synchronizes masters and model. Raises RuntimeError while grads are scaled.")
      .def("end_step", &OptimizerState::end_step, Unlocked(), py::arg("scalers"),
           "Ends a step, taken or skipped; scalers: one per loss.")
      .def("zero_grad", &OptimizerState::zero_grad, Unlocked(), py::arg("set_to_none"),
           "Like zero_grad, for grads that the optimizer's own does not reach.")
      .def(
          "flush_report", [](const OptimizerState& state) { return state.late_report().flush(); },
          "Counts the steps that the device has reported, and returns the skipped ones.")
      .def("telemetry", &telemetry,
           "(steps, skipped_steps, stepped, loss_scales) since the first call.");
}

}  // namespace

void bind_core(py::module_& module) {
  bind_optimizer_state(module);
  py::class_<Backward>(module, "Backward", kBackward)
      .def(py::init(&make_backward), py::keep_alive<1, 3>(), py::arg("states"), py::arg("scaler"),
           py::arg("loss_id") = 0, py::kw_only(), py::arg("delay_unscale") = false,
           py::arg("delay_overflow_check") = false)
      .def_static("is_needed", &Backward::is_needed, py::arg("states"), py::arg("scaler"),
                  "Whether autograd's grads cannot be used as they are.")
      .def("scale", &Backward::scale, Unlocked(), py::arg("loss"),
           "The loss times the current scale.")
      .def("prepare", &Backward::prepare, Unlocked(), "Sets grads of earlier backwards aside.")
      .def("cancel", &Backward::cancel, Unlocked(), "Restores them.")
      .def("finish", &Backward::finish, Unlocked(),
           "Unscales, checks and updates, or delays that.");
}

}  // namespace torchamp::python

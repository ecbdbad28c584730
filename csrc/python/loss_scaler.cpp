#include <c10/util/StringUtil.h>
#include <pybind11/functional.h>
#include <torchamp/loss_scaler.h>

#include "frontend/device_grads.h"
#include "python/bindings.h"
#include "python/loss_scale.h"
#include "scaler/ranks.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

constexpr const char* kLossScaler =
    R"(A loss scale, fixed or dynamic, whose state lives on the device.

Args:
    loss_scale: "dynamic" or a positive number.
    init_scale: where a dynamic scale starts, unless rule.max_scale is lower.
    rule: how a dynamic scale is updated.
    device: where the state lives.

Raises:
    ValueError: for a scale that is not positive and finite, and for a rule whose min_scale is not
        between 0 and max_scale.)";

LossScaler make_scaler(const LossScaleArgument& loss_scale, double init_scale,
                       const ops::ScaleRule& rule, at::Device device) {
  return LossScaler({to_loss_scale(loss_scale), init_scale, rule}, device);
}

std::tuple<double, int64_t> state_of(const LossScaler& scaler) {
  const ScaleState state = scaler.state();
  return {state.loss_scale, state.growth_tracker};
}

void load_state(LossScaler& scaler, double loss_scale, int64_t growth) {
  scaler.load_state({loss_scale, growth});
}

void update(LossScaler& scaler, const std::optional<at::Tensor>& found_inf) {
  found_inf ? scaler.update(*found_inf) : scaler.update();
}

Agreement make_agreement(std::function<void(const at::Tensor&)> all_reduce_max, int64_t rank,
                         int64_t size) {
  return {std::move(all_reduce_max), rank, size};
}

void check_same_state(const Agreement& ranks, double loss_scale, int64_t growth,
                      at::Device device) {
  check_same_on_all_ranks(ranks, {loss_scale, growth}, device);
}

void bind_agreement(py::module_& module) {
  py::class_<Agreement>(module, "Agreement",
                        "What makes the ranks of a program agree on overflows.")
      .def(py::init(&make_agreement), py::arg("all_reduce_max"), py::arg("rank"), py::arg("size"),
           "all_reduce_max: makes a float32 tensor the maximum over all ranks, in place.")
      .def(
          "all_reduce_max",
          [](const Agreement& ranks, const at::Tensor& tensor) { ranks.all_reduce_max(tensor); },
          Unlocked(), py::arg("tensor"), "As given.")
      .def("check_same_state", &check_same_state, Unlocked(), py::arg("loss_scale"),
           py::arg("growth_tracker"), py::arg("device"),
           "Raises RuntimeError on all ranks unless all have the same. Waits for the device.");
}

void bind_scaling(py::class_<LossScaler>& scaler) {
  scaler
      .def_property(
          "rule", [](const LossScaler& self) { return self.rule(); }, &LossScaler::set_rule,
          "How a dynamic scale is updated; a copy.")
      .def_property_readonly("dynamic", &LossScaler::dynamic, "Whether update() changes the scale.")
      .def_property_readonly("is_identity", &LossScaler::is_identity,
                             "Whether the scale is fixed at 1.")
      .def_property_readonly("device", &LossScaler::device, "The device of scale and tracker.")
      .def(
          "scale", [](const LossScaler& self, const at::Tensor& loss) { return self.scale(loss); },
          Unlocked(), py::arg("loss"),
          "loss * loss_scale in float32, of any shape, on the autograd graph. The scale must "
          "not be updated before the backward.")
      .def("inv_scale", &LossScaler::inv_scale, Unlocked(),
           "The current 1 / loss_scale: a new float32 scalar that later updates do not change.")
      .def(
          "found_inf", &LossScaler::found_inf,
          "The float32 scalar that ops set when they meet a non-finite value: of the last finished "
          "backward, or since update().")
      .def(
          "forget_deferred", [](const LossScaler& self) { self.deferred()->take(); },
          "Clears overflows that a later update would take into account.")
      .def("set_agreement", &LossScaler::set_agreement, py::arg("agreement"),
           "From the next backward on, overflows are those of all ranks.")
      .def("clear_found_inf", &LossScaler::clear_found_inf, Unlocked(),
           "Replaces found_inf with a new 0.")
      .def("update", &update, Unlocked(), py::arg("found_inf") = py::none(),
           "Takes found_inf into account, and clears it: grows or backs off. A fixed scale stays. "
           "With an argument, another one: a float32 scalar on the device.");
}

void bind_state(py::class_<LossScaler>& scaler) {
  scaler
      .def("loss_scale_tensor", &LossScaler::loss_scale_tensor,
           "The scale as a float32 scalar on the device.")
      .def("loss_scale", &LossScaler::loss_scale, Unlocked(),
           "The scale as a float. Waits for the device.")
      .def("set_loss_scale", &LossScaler::set_loss_scale, Unlocked(), py::arg("value"),
           R"(Makes the scale value.

Raises:
    ValueError: unless value is positive and finite.)")
      .def("state", &state_of, Unlocked(), "(loss_scale, growth_tracker). Waits for the device.")
      .def(
          "__repr__", [](const LossScaler& self) { return c10::str(self); }, Unlocked(),
          "One line: the scale and its rule. Waits for the device.")
      .def("load_state", &load_state, Unlocked(), py::arg("loss_scale"), py::arg("growth_tracker"),
           R"(Resumes from a state().

Raises:
    ValueError: unless loss_scale is positive and finite.)");
}

}  // namespace

void bind_loss_scaler(py::module_& module) {
  bind_agreement(module);
  module.def("check_grads", &check_grads, Unlocked(), py::arg("params"), py::arg("inv_scale"),
             "Checks the parameters' grads, and, unless inv_scale is None, multiplies them by it. "
             "Gives found_inf, and uint8, one element a parameter, for each device with grads.");
  const LossScalerOptions defaults;
  py::class_<LossScaler> scaler(module, "LossScaler", kLossScaler);
  scaler.def(py::init(&make_scaler), py::arg("loss_scale") = "dynamic", py::kw_only(),
             py::arg("init_scale") = defaults.init_scale, py::arg("rule") = defaults.rule,
             py::arg("device") = at::Device(at::kCPU));
  bind_scaling(scaler);
  bind_state(scaler);
}

}  // namespace torchamp::python

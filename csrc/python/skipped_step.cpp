#include "late_report.h"

#include <torchamp/master_weights.h>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

void gather(LateReport& report, int64_t loss_id, const LossScaler& scaler,
            const MasterWeights& weights) {
  report.gather({loss_id, scaler.last_report(), weights.last_report()});
}

py::tuple telemetry(LateReport& report) {
  const Telemetry& known = report.known();
  return py::make_tuple(known.steps, known.skipped_steps, known.stepped,
                        py::tuple(py::cast(known.loss_scales)));
}

py::tuple overflow_of(const Overflow& overflow) {
  return py::make_tuple(overflow.loss_id, overflow.loss_scale);
}

py::list overflows_of(const SkippedStep& skipped) {
  py::list overflows;
  for (const Overflow& overflow : skipped.overflows) overflows.append(overflow_of(overflow));
  return overflows;
}

}  // namespace

void bind_late_report(py::module_& module) {
  py::class_<SkippedStep>(module, "SkippedStep", "A step that the device left out.")
      .def_property_readonly("overflows", &overflows_of,
                             "(loss_id, its scale afterwards) of the losses that overflowed.")
      .def_readonly("nonfinite", &SkippedStep::nonfinite,
                    "How many parameters had a grad that was not finite.")
      .def_readonly("first", &SkippedStep::first,
                    "The first of those, as indices into model_params().");
  py::class_<LateReport>(
      module, "LateReport",
      "Counts one optimizer's steps once the device has told of their backwards. "
      "Waits for nothing.")
      .def(py::init<>())
      .def("gather", &gather, py::arg("loss_id"), py::arg("scaler"), py::arg("weights"),
           "Takes note of the backward that the two have ended last.")
      .def("clear", &LateReport::clear, "Forgets the backwards since the last step.")
      .def("note", &LateReport::note, py::arg("scalers"),
           "Ends a step of those backwards; scalers: one a loss.")
      .def("flush", &LateReport::flush,
           "Counts what has arrived, and returns the steps of it that were skipped.")
      .def("telemetry", &telemetry,
           "(steps, skipped_steps, stepped, loss_scales) since the first call.");
}

}  // namespace torchamp::python

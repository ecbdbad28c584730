#include "core/late_report.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

py::tuple overflow_of(const Overflow& overflow) {
  return py::make_tuple(overflow.loss_id, overflow.loss_scale);
}

py::list overflows_of(const SkippedStep& skipped) {
  py::list overflows;
  for (const Overflow& overflow : skipped.overflows) overflows.append(overflow_of(overflow));
  return overflows;
}

}  // namespace

void bind_skipped_step(py::module_& module) {
  py::class_<SkippedStep>(module, "SkippedStep", "A step that the device skipped.")
      .def_property_readonly("overflows", &overflows_of,
                             "(loss_id, its scale afterwards) of the losses that overflowed.")
      .def_readonly("nonfinite", &SkippedStep::nonfinite,
                    "How many parameters had a grad that was not finite.")
      .def_readonly("first", &SkippedStep::first,
                    "The first of them, as indices into model_params().");
}

}  // namespace torchamp::python

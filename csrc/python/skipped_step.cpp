#include "core/skip_messages.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

}  // namespace

void bind_skipped_step(py::module_& module) {
  py::class_<SkippedStep>(module, "SkippedStep", "A step that the device skipped.")
      .def_readonly("first", &SkippedStep::first,
                    "The first parameters whose grad was not finite, as indices into "
                    "model_params().")
      .def("messages", &messages_of, py::arg("names"),
           "The lines that report it; names: of the parameters in first.")
      .def("check_in_a_row", &check_in_a_row, py::arg("max_in_a_row"),
           "Raises RuntimeError if it is that many in a row.");
}

}  // namespace torchamp::python

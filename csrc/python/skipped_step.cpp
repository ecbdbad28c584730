#include "core/skip_messages.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

std::vector<std::pair<int, std::string>> levels_and_texts(const SkippedStep& step,
                                                          const std::vector<std::string>& names) {
  std::vector<std::pair<int, std::string>> result;
  for (LogMessage& message : messages_of(step, names)) {
    result.emplace_back(static_cast<int>(message.level), std::move(message.text));
  }
  return result;
}

}  // namespace

void bind_skipped_step(py::module_& module) {
  py::class_<SkippedStep>(module, "SkippedStep", "A step that the device skipped.")
      .def_readonly("first", &SkippedStep::first,
                    "The first parameters whose grad was not finite, as indices into "
                    "model_params().")
      .def("messages", &levels_and_texts, py::arg("names"),
           "What reports it, as logging's levels and texts; names: of the parameters in first.")
      .def("check_in_a_row", &check_in_a_row, py::arg("max_in_a_row"),
           "Raises RuntimeError if it is that many in a row.");
}

}  // namespace torchamp::python

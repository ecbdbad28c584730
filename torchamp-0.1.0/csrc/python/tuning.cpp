#include "ops/tuning.h"

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

py::dict tuning() {
  py::dict values;
  for (const TuningField& field : tuning_fields()) values[field.name.c_str()] = field.value;
  return values;
}

py::dict tuning_choices() {
  py::dict choices;
  for (const TuningField& field : tuning_fields()) {
    choices[field.name.c_str()] = py::cast(field.choices);
  }
  return choices;
}

void set_tuning_by_name(const py::kwargs& values) {
  for (const auto& [name, value] : values) {
    set_tuning(py::cast<std::string>(name), py::cast<int64_t>(value));
  }
}

}  // namespace

void bind_tuning(py::module_& module) {
  module.def("tuning", &tuning, "How the CUDA kernels are launched, by name.");
  module.def("tuning_choices", &tuning_choices, "The values that a benchmark compares, by name.");
  module.def("set_tuning", &set_tuning_by_name,
             "Sets some by name; raises ValueError for an unknown name or value.");
}

}  // namespace torchamp::python

// Converts a group's options from a dict to fused_step's columns.
#include <torch/csrc/autograd/python_variable.h>
#include <torchamp/detail/option_specs.h>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using optim::OptionSpec;

constexpr const char* kOptionTable =
    R"(The options of a fused optimizer, in the order of fused_step's columns.

optimizer: "FusedAdam", "FusedAdamW", "FusedSGD", "FusedLARS", "FusedAdagrad", "FusedNovoGrad" or
    "FusedLAMB".)";

/// The options of one optimizer, and the rows of its groups.
class OptionTable {
 public:
  explicit OptionTable(const std::string& optimizer) : specs_(optim::option_specs(optimizer)) {
    for (const OptionSpec& spec : specs_) names_.push_back(interned(spec.name));
  }

  const std::vector<OptionSpec>& specs() const { return specs_; }

  py::list row(const py::dict& group) const {
    py::list row;
    for (size_t i = 0; i < specs_.size(); ++i) {
      PyObject* const value = PyDict_GetItemWithError(group.ptr(), names_[i].ptr());
      if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
      if (value == nullptr) {
        for (const double column : specs_[i].defaults) row.append(column);
      } else if (specs_[i].is_betas()) {
        for (const py::handle beta : py::handle(value)) row.append(beta);
      } else {
        row.append(column_of(value));
      }
    }
    return row;
  }

 private:
  /// Keys of dicts are found by identity.
  static py::str interned(const std::string& name) {
    return py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name.c_str()));
  }

  /// 0 for a learning rate that is a tensor, which is read on the device, and for None.
  static py::object column_of(PyObject* value) {
    const bool is_column = PyFloat_CheckExact(value) || PyLong_Check(value);
    if (is_column || !(value == Py_None || THPVariable_Check(value))) {
      return py::reinterpret_borrow<py::object>(value);
    }
    return py::float_(0.0);
  }

  std::vector<OptionSpec> specs_;
  std::vector<py::str> names_;
};

}  // namespace

void bind_option_table(py::module_& module) {
  py::class_<OptionSpec>(module, "OptionSpec", "An option of a fused optimizer.")
      .def_readonly("name", &OptionSpec::name)
      .def_readonly("defaults", &OptionSpec::defaults)
      .def_readonly("minimum", &OptionSpec::minimum)
      .def_property_readonly("is_betas", &OptionSpec::is_betas);
  py::class_<OptionTable>(module, "OptionTable", kOptionTable)
      .def(py::init<const std::string&>(), py::arg("optimizer"))
      .def_property_readonly("specs", &OptionTable::specs)
      .def("row", &OptionTable::row, py::arg("group"),
           "The group's columns; an option that it lacks has its default.");
  module.def("state_names", &optim::state_names, py::arg("algorithm"),
             "The names of the states that the algorithm keeps per parameter, in its order.");
  module.def("required_states", &optim::required_states, py::arg("algorithm"),
             "The states without which a checkpoint's state of a parameter is incomplete.");
}

}  // namespace torchamp::python

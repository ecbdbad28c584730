// Converts a group's options from a dict to fused_step's columns.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "core/fused_stepper.h"
#include "frontend/optim/option_specs.h"
#include "ops/step_rules.h"
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
  explicit OptionTable(const std::string& optimizer)
      : optimizer_(optimizer), specs_(optim::option_specs(optimizer)) {
    for (const OptionSpec& spec : specs_) names_.push_back(interned(spec.name));
  }

  const std::vector<OptionSpec>& specs() const { return specs_; }

  void set_hyper(FusedStepper& stepper, const py::list& groups) const {
    std::vector<FusedStepper::Row> rows;
    for (const py::handle group : groups) rows.push_back(row_of(group));
    stepper.set_hyper(rows);
  }

 private:
  /// Keys of dicts are found by identity.
  static py::str interned(const std::string& name) {
    return py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name.c_str()));
  }

  FusedStepper::Row row_of(py::handle group) const {
    FusedStepper::Row row{};
    double* column = row.data();
    for (size_t i = 0; i < specs_.size(); ++i) {
      PyObject* const value = PyDict_GetItemWithError(group.ptr(), names_[i].ptr());
      if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
      if (value == nullptr) {
        column = std::copy(specs_[i].defaults.begin(), specs_[i].defaults.end(), column);
      } else if (specs_[i].is_betas()) {
        const auto [beta1, beta2] = betas_of(specs_[i], value);
        *column++ = beta1;
        *column++ = beta2;
      } else {
        *column++ = column_of(specs_[i], value);
      }
    }
    return row;
  }

  /// 0 for a learning rate that is a tensor, which is read on the device, and for a limit of None.
  double column_of(const OptionSpec& spec, PyObject* value) const {
    if (PyFloat_CheckExact(value)) return PyFloat_AS_DOUBLE(value);
    const bool is_lr = spec.name == "lr", is_tensor = THPVariable_Check(value);
    if (is_lr ? is_tensor : value == Py_None) return 0.0;
    if (is_tensor) refuse(spec, "a number", value);
    const double column = PyFloat_AsDouble(value);
    if (column == -1.0 && PyErr_Occurred() != nullptr) refuse(spec, "a number", value);
    return column;
  }

  std::pair<double, double> betas_of(const OptionSpec& spec, PyObject* value) const {
    try {
      return py::handle(value).cast<std::pair<double, double>>();
    } catch (const py::cast_error&) {
      refuse(spec, "two numbers", value);
    }
  }

  [[noreturn]] void refuse(const OptionSpec& spec, const char* expected, PyObject* value) const {
    PyErr_Clear();
    const auto got = py::repr(value).cast<std::string>();
    throw py::value_error(optimizer_ + ": expected " + spec.name + " to be " + expected + ", got " +
                          got);
  }

  std::string optimizer_;

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
      .def(
          "set_hyper", &OptionTable::set_hyper, py::arg("stepper"), py::arg("groups"),
          "Makes the groups' options the hyperparameters of a FusedStepper; an option that a group "
          "lacks has its default. Discards the learning rates that set_lr() has set.");
  module.def("state_names", &state_names, py::arg("algorithm"),
             "The names of the states that the algorithm keeps per parameter, in its order.");
  module.def("required_states", &optim::required_states, py::arg("algorithm"),
             "The states without which a checkpoint's state of a parameter is incomplete.");
}

}  // namespace torchamp::python

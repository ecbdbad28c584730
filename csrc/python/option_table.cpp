// Checks a group's options, and converts them from a dict to fused_step's columns.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "frontend/optim/option_specs.h"
#include "ops/step_rules.h"
#include "optim/fused_stepper.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using optim::OptionSpec;

/// Raises ValueError, which begins with the optimizer's name.
[[noreturn]] void refuse(const std::string& optimizer, const std::string& name,
                         const std::string& expected, const py::handle& got) {
  throw py::value_error(optimizer + ": expected " + name + " to be " + expected + ", got " +
                        py::str(got).cast<std::string>());
}

/// The value as a float. Raises ValueError for what is none, as 10**400, which is too large.
double number_of(const std::string& optimizer, const std::string& name, const py::handle& value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number != -1.0 || PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();
  refuse(optimizer, name, "a number", py::repr(value));
}

bool is_real(py::handle value) {
  return PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr()) ||
         py::isinstance(value, py::module_::import("numbers").attr("Real"));
}

bool are_betas(py::handle value) {
  if (!PyTuple_Check(value.ptr()) && !PyList_Check(value.ptr())) return false;
  const auto betas = py::reinterpret_borrow<py::sequence>(value);
  return betas.size() == 2 && is_real(betas[0]) && is_real(betas[1]);
}

/// A tensor is checked on the CPU alone, since nothing waits for a device.
void check_minimum(const std::string& optimizer, const std::string& name, py::object value,
                   double minimum) {
  const bool is_tensor =
      THPVariable_CheckExact(value.ptr()) && THPVariable_Unpack(value.ptr()).is_cpu();
  if (is_tensor) value = value.attr("item")();
  if (!PyFloat_Check(value.ptr()) && !PyLong_Check(value.ptr())) return;
  if (number_of(optimizer, name, value) >= minimum) return;
  const auto least = py::str(py::float_(minimum)).cast<std::string>();
  refuse(optimizer, name, "at least " + least, value);
}

void check_option(const std::string& optimizer, const OptionSpec& spec, py::object value) {
  const bool is_tensor = THPVariable_Check(value.ptr()), is_lr = spec.name == "lr";
  if (spec.is_betas()) {
    if (!are_betas(value)) refuse(optimizer, spec.name, "two numbers", py::repr(value));
    for (int i = 0; i < 2; ++i) {
      const py::object beta = value[py::int_(i)];
      const std::string name = spec.name + "[" + std::to_string(i) + "]";
      const double number = number_of(optimizer, name, beta);
      if (!(0.0 <= number && number < 1.0)) refuse(optimizer, name, "in [0, 1)", beta);
    }
    return;
  }
  if (!is_tensor && !is_real(value) && (is_lr || !value.is_none())) {
    refuse(optimizer, spec.name, "a number", py::repr(value));
  }
  if (is_tensor && !is_lr) refuse(optimizer, spec.name, "a number", py::str("a tensor"));
  if (is_tensor && THPVariable_Unpack(value.ptr()).numel() != 1) {
    const auto sizes = py::str(py::list(value.attr("shape"))).cast<std::string>();
    refuse(optimizer, "lr", "a number or a tensor of one element", py::str("sizes " + sizes));
  }
  check_minimum(optimizer, spec.name, value, spec.minimum);
}

/// The options of one optimizer, and the rows of its groups.
class OptionTable {
 public:
  explicit OptionTable(const std::string& optimizer)
      : optimizer_(optimizer), specs_(optim::option_specs(optimizer)) {
    for (const OptionSpec& spec : specs_) names_.push_back(interned(spec.name));
  }

  const std::vector<OptionSpec>& specs() const { return specs_; }

  void check(const std::string& optimizer, const py::dict& values) const {
    for (size_t i = 0; i < specs_.size(); ++i) {
      check_option(optimizer, specs_[i], values.attr("get")(names_[i]));
    }
  }

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
      if (value == nullptr && !specs_[i].ours_alone) {
        refuse(optimizer_, specs_[i].name, "in each group", py::str("one without it"));
      }
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
    if (is_tensor) refuse(optimizer_, spec.name, "a number", py::repr(value));
    return number_of(optimizer_, spec.name, value);
  }

  std::pair<double, double> betas_of(const OptionSpec& spec, PyObject* value) const {
    try {
      return py::handle(value).cast<std::pair<double, double>>();
    } catch (const py::cast_error&) {
      refuse(optimizer_, spec.name, "two numbers", py::repr(value));
    }
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
      .def_property_readonly("is_betas", &OptionSpec::is_betas);
  py::class_<OptionTable>(module, "OptionTable",
                          "The options of a fused optimizer, in the order of fused_step's columns.")
      .def(py::init<const std::string&>(), py::arg("optimizer"))
      .def_property_readonly("specs", &OptionTable::specs)
      .def("check", &OptionTable::check, py::arg("optimizer"), py::arg("values"),
           "Raises ValueError, which begins with `optimizer`, unless the values are in range.")
      .def("set_hyper", &OptionTable::set_hyper, py::arg("stepper"), py::arg("groups"),
           "Makes the groups' options the hyperparameters of a FusedStepper. Options that torch's "
           "optimizer and its files lack may be missing, and have their defaults. Discards the "
           "learning rates that set_lr() has set.");
  module.def("state_names", &state_names, py::arg("algorithm"),
             "The names of the states that the algorithm keeps per parameter, in its order.");
  module.def("required_states", &optim::required_states, py::arg("algorithm"),
             "The states without which a checkpoint's state of a parameter is incomplete.");
}

}  // namespace torchamp::python

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

/// A learning rate that is a tensor is read on the device.
double column_of(const py::handle& value) {
  return value.is_none() || THPVariable_Check(value.ptr()) ? 0.0 : value.cast<double>();
}

class OptionTable {
 public:
  explicit OptionTable(const std::string& optimizer) : specs_(optim::option_specs(optimizer)) {
    for (const OptionSpec& spec : specs_) names_.push_back(py::str(spec.name));
  }

  const std::vector<OptionSpec>& specs() const { return specs_; }

  std::vector<double> row(const py::dict& group) const {
    std::vector<double> row;
    for (size_t i = 0; i < specs_.size(); ++i) {
      const bool has_it = group.contains(names_[i]);
      const py::object value = has_it ? py::object(group[names_[i]]) : py::none();
      if (!has_it) {
        row.insert(row.end(), specs_[i].defaults.begin(), specs_[i].defaults.end());
      } else if (specs_[i].is_betas()) {
        for (const py::handle beta : value) row.push_back(column_of(beta));
      } else {
        row.push_back(column_of(value));
      }
    }
    return row;
  }

 private:
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
}

}  // namespace torchamp::python

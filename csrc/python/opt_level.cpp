#include <torchamp/opt_level.h>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

/// "dynamic" or a float, as the Python side spells it.
py::object loss_scale_of(const Properties& properties) {
  if (properties.loss_scale.dynamic()) return py::str("dynamic");
  return py::float_(*properties.loss_scale.fixed);
}

void bind_properties(py::module_& module) {
  py::class_<Properties>(module, "Properties", "What initialize does: a level and its overrides.")
      .def_property_readonly("opt_level", [](const Properties& p) { return name(p.opt_level); })
      .def_readonly("cast_model_type", &Properties::cast_model_type)
      .def_readonly("autocast_type", &Properties::autocast_type)
      .def_readonly("keep_batchnorm_fp32", &Properties::keep_batchnorm_fp32)
      .def_readonly("master_weights", &Properties::master_weights)
      .def_property_readonly("loss_scale", &loss_scale_of);
}

void bind_setters(py::class_<Options>& options) {
  constexpr auto self = py::return_value_policy::reference_internal;
  using Text = const std::string&;
  options
      .def("cast_model_type", py::overload_cast<c10::ScalarType>(&Options::cast_model_type), self)
      .def("dont_cast_model", &Options::dont_cast_model, self)
      .def("autocast", &Options::autocast, self)
      .def("keep_batchnorm_fp32", py::overload_cast<bool>(&Options::keep_batchnorm_fp32), self)
      .def("keep_batchnorm_fp32", py::overload_cast<Text>(&Options::keep_batchnorm_fp32), self)
      .def("master_weights", &Options::master_weights, self)
      .def("loss_scale", py::overload_cast<LossScale>(&Options::loss_scale), self)
      .def("cast_model_outputs", py::overload_cast<c10::ScalarType>(&Options::cast_model_outputs),
           self)
      .def("num_losses", py::overload_cast<int64_t>(&Options::num_losses), self)
      .def("min_loss_scale", py::overload_cast<double>(&Options::min_loss_scale), self)
      .def("max_loss_scale", py::overload_cast<double>(&Options::max_loss_scale), self);
}

}  // namespace

void bind_opt_level(py::module_& module) {
  bind_properties(module);
  py::class_<LossScale>(module, "LossScale", "\"dynamic\", or a fixed factor.")
      .def(py::init<double>())
      .def(py::init<const std::string&>());
  py::implicitly_convertible<double, LossScale>();
  py::implicitly_convertible<int64_t, LossScale>();
  py::implicitly_convertible<py::str, LossScale>();
  py::class_<Options> options(module, "Options", "A level, and what to change of it.");
  options.def(py::init<const std::string&>()).def("resolve", &Options::resolve);
  bind_setters(options);
}

}  // namespace torchamp::python

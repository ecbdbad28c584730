#include <c10/util/StringUtil.h>
#include <torchamp/opt_level.h>

#include "frontend/describe.h"
#include "python/bindings.h"
#include "python/loss_scale.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

/// "dynamic" or a float, as in Python.
py::object loss_scale_of(const Properties& properties) {
  if (properties.loss_scale.dynamic()) return py::str("dynamic");
  return py::float_(*properties.loss_scale.fixed);
}

Options& set_loss_scale(Options& options, const LossScaleArgument& value) {
  return options.loss_scale(to_loss_scale(value));
}

void bind_properties(py::module_& module) {
  py::class_<Properties>(module, "Properties", "What initialize does: a level and its overrides.")
      .def_property_readonly("opt_level", [](const Properties& p) { return name(p.opt_level); })
      .def_readonly("cast_model_type", &Properties::cast_model_type)
      .def_readonly("autocast_type", &Properties::autocast_type)
      .def_readonly("keep_batchnorm_fp32", &Properties::keep_batchnorm_fp32)
      .def_readonly("master_weights", &Properties::master_weights)
      .def_property_readonly("loss_scale", &loss_scale_of)
      .def("describe", &describe,
           "The lines that describe it, without the level: names and values.")
      .def("__repr__", [](const Properties& self) { return c10::str(self); });
}

void bind_setters(py::class_<Options>& options) {
  constexpr auto self = py::return_value_policy::reference_internal;
  options
      .def("cast_model_type", py::overload_cast<c10::ScalarType>(&Options::cast_model_type), self)
      .def("dont_cast_model", &Options::dont_cast_model, self)
      .def("autocast", py::overload_cast<bool>(&Options::autocast), self)
      .def("keep_batchnorm_fp32", py::overload_cast<bool>(&Options::keep_batchnorm_fp32), self)
      .def("master_weights", py::overload_cast<bool>(&Options::master_weights), self)
      .def("loss_scale", &set_loss_scale, self)
      .def("num_losses", py::overload_cast<int64_t>(&Options::num_losses), self)
      .def("max_consecutive_skips", py::overload_cast<int64_t>(&Options::max_consecutive_skips),
           self);
}

}  // namespace

void bind_opt_level(py::module_& module) {
  bind_properties(module);
  py::class_<Options> options(module, "Options", "A level and its overrides.");
  options.def(py::init<const std::string&>()).def("resolve", &Options::resolve);
  bind_setters(options);
}

}  // namespace torchamp::python

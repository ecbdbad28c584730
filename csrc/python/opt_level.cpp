#include <c10/util/StringUtil.h>
#include <torchamp/opt_level.h>

#include <utility>

#include "frontend/describe.h"
#include "frontend/dtype_errors.h"
#include "frontend/session_checks.h"
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

void set_loss_scale(Options& options, const py::object& value) {
  options.loss_scale(to_loss_scale(value.cast<LossScaleArgument>()));
}

/// False: the model's dtype stays.
void set_cast_model_type(Options& options, const py::object& value) {
  if (value.is(py::bool_(false))) {
    options.dont_cast_model();
  } else {
    options.cast_model_type(value.cast<c10::ScalarType>());
  }
}

/// True, False, or names of modules.
void set_float8(Options& options, const py::object& value) {
  if (py::isinstance<py::bool_>(value)) {
    options.float8(value.cast<bool>());
  } else {
    options.float8(value.cast<std::vector<std::string>>());
  }
}

template <class T, Options& (Options::*kSetter)(T), class Value = T>
void set(Options& options, const py::object& value) {
  (options.*kSetter)(value.cast<Value>());
}

/// The options that properties depend on or C++ checks, by initialize's names.
constexpr std::pair<const char*, void (*)(Options&, const py::object&)> kSetters[] = {
    {"cast_model_type", set_cast_model_type},
    {"patch_torch_functions", set<detail::Flag, &Options::autocast, bool>},
    {"keep_batchnorm_fp32", set<bool, &Options::keep_batchnorm_fp32>},
    {"float8", set_float8},
    {"master_weights", set<detail::Flag, &Options::master_weights, bool>},
    {"loss_scale", set_loss_scale},
    {"num_losses", set<int64_t, &Options::num_losses>},
    {"max_consecutive_skips", set<int64_t, &Options::max_consecutive_skips>},
    {"min_loss_scale", set<double, &Options::min_loss_scale>},
    {"max_loss_scale", set<double, &Options::max_loss_scale>}};

void set_option(Options& options, const std::string& name, const py::object& value) {
  for (const auto& [known, setter] : kSetters) {
    if (name == known) setter(options, value);
  }
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

void bind_given_params(py::module_& module) {
  py::class_<GivenParams>(module, "GivenParams",
                          "The parameters that initialize is given, before it changes anything.")
      .def(
          py::init([](std::vector<GivenParams::Named> models,
                      std::vector<std::vector<at::Tensor>> optimizers, std::vector<at::Tensor> cast,
                      const Properties& properties, std::vector<size_t> rounding) {
            return GivenParams{std::move(models), std::move(optimizers), std::move(cast),
                               properties, std::move(rounding)};
          }),
          py::arg("models"), py::arg("optimizers"), py::arg("cast"), py::arg("properties"),
          py::arg("rounding"),
          "cast: those of the models, whose parameters come by name, that get another dtype. "
          "rounding: the indices of the optimizers with stochastic rounding.")
      .def("check", &GivenParams::check,
           "Raises TypeError or ValueError for what initialize cannot take.")
      .def("warnings", &GivenParams::warnings, "What initialize warns of.")
      .def("device", &GivenParams::device, "The one that all are on; raises RuntimeError.")
      .def("mastered", &GivenParams::mastered, "Those that get a master, once each.")
      .def("frozen_masters", &GivenParams::frozen_masters,
           "A line on the masters of frozen parameters; empty if there are none.");
  module.def(
      "dtype_error",
      [](const std::string& message) {
        constexpr const char* kNames[] = {"", "overflow", "no kernel", "mixed", "hook"};
        return kNames[static_cast<int>(dtype_error(message))];
      },
      py::arg("message"), "What an error of torch says about dtypes; \"\" where it does not.");
  module.def("rounded_buffers", &rounded_buffers, py::arg("names"), py::arg("dtype"),
             "A line on the buffers that a cast rounds; empty if there are none.");
}

}  // namespace

void bind_opt_level(py::module_& module) {
  bind_properties(module);
  bind_given_params(module);
  py::class_<Options>(module, "Options", "A level and its overrides.")
      .def(py::init<const std::string&>())
      .def("set", &set_option, py::arg("name"), py::arg("value"),
           "Overrides what the level has. Options that C++ has no use for are left out. Raises "
           "RuntimeError or ValueError for a value that no level takes.")
      .def("resolve", &Options::resolve);
}

}  // namespace torchamp::python


#include <memory>
#include <utility>
#include <vector>

#include "core/param.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using core::Param;

void publish_master(const std::shared_ptr<Param>& param) {
  core::publish_masters({param});
}

}  // namespace

void bind_params(py::module_& module) {
  py::class_<Param, std::shared_ptr<Param>>(
      module, "Param", "A model's parameter, and the tensor that an optimizer steps for it.")
      .def_readonly("model", &Param::model)
      .def_readonly("master", &Param::master, "float32, or the model's itself.")
      .def_property_readonly("has_master", &Param::has_master,
                             "Whether that is another tensor than the model's.")
      .def_property_readonly(
          "is_checked",
          [](const Param& self) { return self.grad.state() == core::GradState::kChecked; },
          "Whether its grad is in the model, checked, and the step unscales it.")
      .def("publish_master", &publish_master, Unlocked(),
           "Copies the master to the model if it was written from outside, and the model was not.")
      .def("mark_synced", &Param::mark_synced, "Records that both agree.")
      .def("value", &Param::value, Unlocked(),
           "In float32: the master's elements where the model's equal them, rounded; elsewhere the "
           "model's.")
      .def("entry", &Param::entry, Unlocked(),
           "The master, where the model's equals it, rounded; else value(). Waits for the device.")
      .def("set_master", &Param::set_master, py::arg("value"),
           "Sets the master to value, of any floating dtype.")
      .def("set_master_where_held", &Param::set_master_where_held, Unlocked(), py::arg("value"),
           "Sets the master's elements to value's, float32, where the model's equal them, rounded.")
      .def("is_rounded_master", &Param::is_rounded_master, Unlocked(),
           "Whether the model's equals the master, rounded. Waits for the device.");
  module.def("make_master", &core::make_master, py::arg("model_param"),
             "The float32 master of a parameter that is about to be cast; adopts its float32 "
             "memory.");
  module.def("set_data", &core::set_data, py::arg("tensor"), py::arg("data"),
             "tensor.data = data, of any dtype. The node that accumulates its grad stays, with its "
             "hooks.");
  module.def("stepped_for", &core::stepped_for, py::arg("param"),
             "What an optimizer steps for a parameter: its master, or itself.");
  module.def("param_of", &core::param_of, py::arg("tensor"),
             "The Param of a tensor of a model, or of a master; None: nobody steps it.");
}

}  // namespace torchamp::python

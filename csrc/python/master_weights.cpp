#include <torchamp/master_weights.h>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

using MasterWeightsClass = py::class_<MasterWeights, std::shared_ptr<MasterWeights>>;

constexpr const char* kMasterWeights =
    R"(The parameters of one optimizer, each with the tensor that the optimizer steps.

That is a float32 master of its own, or the parameter itself.)";

OptionalTensor optional(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

void mark_synced(MasterWeights& weights, const OptionalTensor& model_param) {
  if (model_param) {
    weights.mark_synced(*model_param);
  } else {
    weights.mark_synced();
  }
}

void step_masters(MasterWeights& weights, FusedStepper& stepper, const OptionalTensor& skip) {
  weights.step(stepper, skip.value_or(Tensor()));
}

void bind_tracking(MasterWeightsClass& weights) {
  weights
      .def(
          "track",
          [](MasterWeights& self, const Tensor& param, const OptionalTensor& master) {
            return self.track(param, master.value_or(Tensor()));
          },
          py::arg("model_param"), py::arg("master") = py::none(),
          "Tracks a parameter and returns what the optimizer steps: master, or itself if None.")
      .def_static("make_master", &MasterWeights::make_master, py::arg("model_param"),
                  "The float32 master of a parameter that is about to be cast; takes over its "
                  "float32 memory.")
      .def("model_params", &MasterWeights::model_params)
      .def("master_params", &MasterWeights::master_params)
      .def(
          "master_of",
          [](const MasterWeights& self, const Tensor& param) {
            return optional(self.master_of(param));
          },
          py::arg("model_param"), "What the optimizer steps; None for an unknown parameter.")
      .def(
          "master_value",
          [](const MasterWeights& self, const Tensor& param) {
            return optional(self.master_value(param));
          },
          py::arg("model_param"), "A float32 copy of the master; None for an unknown parameter.")
      .def("set_master_value", &MasterWeights::set_master_value, py::arg("model_param"),
           py::arg("value"), "Makes value, of any floating dtype, the master's.")
      .def("split", &MasterWeights::split,
           "Keeps masters as 16 bits beside the model's 16, until they are made eager.")
      .def_property_readonly("is_split", [](const MasterWeights& self) { return self.is_split(); })
      .def_property_readonly("has_masters", &MasterWeights::has_masters);
}

void bind_backward(MasterWeightsClass& weights) {
  weights
      .def(
          "found_inf_per_param",
          [](const MasterWeights& self) { return optional(self.found_inf_per_param()); },
          "uint8, one element a parameter: which had non-finite grads since that was "
          "cleared; None before the first backward.")
      .def("clear_found_inf_per_param", &MasterWeights::clear_found_inf_per_param)
      .def_property("lazy", &MasterWeights::lazy, &MasterWeights::set_lazy,
                    "Whether master grads may be left unmade where a fused step can do without.")
      .def_property_readonly("is_pending", &MasterWeights::is_pending,
                             "Whether the last backward's master grads are still to be made.")
      .def("materialize", &MasterWeights::materialize, Unlocked(), "Makes them.")
      .def("step", &step_masters, Unlocked(), py::arg("stepper"), py::arg("skip") = py::none(),
           "Steps masters and model in one pass; nothing changes if skip is not 0.")
      .def("drop_master_grads", &MasterWeights::drop_master_grads, Unlocked(),
           "Drops the grads of masters, made or still to be made.");
}

void bind_syncing(MasterWeightsClass& weights) {
  weights
      .def("refresh", &MasterWeights::refresh, Unlocked(),
           "Brings the two sides together where one was written from outside; the model wins.")
      .def("force_refresh", &MasterWeights::force_refresh, Unlocked(),
           "master = float(model), whatever the version counters say.")
      .def("copy_to_model", &MasterWeights::copy_to_model, Unlocked())
      .def("mark_synced", &mark_synced, py::arg("model_param") = py::none())
      .def("is_rounded_master", &MasterWeights::is_rounded_master, Unlocked(),
           py::arg("model_param"),
           "Whether the model's parameter is its master, rounded. Waits for the device.")
      .def("held_value", &MasterWeights::held_value, Unlocked(), py::arg("model_param"),
           "In float32, the master's elements where the model still holds them, rounded; elsewhere "
           "the model's.")
      .def("adopt_data_writes", &MasterWeights::adopt_data_writes, Unlocked(),
           "Makes held_value the masters'. Waits for no device.");
}

}  // namespace

void bind_master_weights(py::module_& module) {
  MasterWeightsClass weights(module, "MasterWeights", kMasterWeights);
  weights.def(py::init<>());
  bind_tracking(weights);
  bind_backward(weights);
  bind_syncing(weights);
  module.def("clip_grad_norm", &clip_grad_norm, Unlocked(), py::arg("weights"), py::arg("max_norm"),
             "Scales the grads of a list of MasterWeights so that their norm together is at most "
             "max_norm; returns what it was, a float32 scalar on the device.");
}

}  // namespace torchamp::python

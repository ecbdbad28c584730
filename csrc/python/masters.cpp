#include <torchamp/detail/masters.h>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/context.h"
#include "python/suppressions.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;
using at::Tensor;
using core::Masters;
using OptionalTensor = std::optional<Tensor>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

using MastersClass = py::class_<Masters, std::shared_ptr<Masters>>;

constexpr const char* kMasters =
    R"(The parameters of one optimizer, each with the tensor that it steps, and their grads.

That is a separate float32 master, or the parameter itself.)";

OptionalTensor optional(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

/// A method of the masters' weights, or of their grads.
template <class Part, class Result, class... Args>
auto of(Part Masters::*part, Result (Part::*method)(Args...)) {
  return [=](Masters& self, Args... args) -> Result { return (self.*part.*method)(args...); };
}

template <class Part, class Result, class... Args>
auto of(Part Masters::*part, Result (Part::*method)(Args...) const) {
  return [=](const Masters& self, Args... args) -> Result { return (self.*part.*method)(args...); };
}

template <class Method>
auto weights(Method method) {
  return of(&Masters::weights, method);
}

template <class Method>
auto grads(Method method) {
  return of(&Masters::grads, method);
}

void mark_synced(Masters& self, const OptionalTensor& model_param) {
  if (model_param) {
    self.weights.mark_synced(*model_param);
  } else {
    self.weights.mark_synced();
  }
}

void bind_tracking(MastersClass& masters) {
  masters
      .def(
          "track",
          [](Masters& self, const Tensor& param, const OptionalTensor& master) {
            return self.track(param, master.value_or(Tensor()));
          },
          py::arg("model_param"), py::arg("master") = py::none(),
          "Tracks a parameter and returns what the optimizer steps: master, or itself if None.")
      .def_static("make_master", &MasterWeights::make_master, py::arg("model_param"),
                  "The float32 master of a parameter that is about to be cast; adopts its "
                  "float32 memory.")
      .def("model_params", weights(&MasterWeights::model_params))
      .def("master_params", weights(&MasterWeights::master_params))
      .def(
          "master_of",
          [](const Masters& self, const Tensor& param) {
            return optional(self.weights.master_of(param));
          },
          py::arg("model_param"), "What the optimizer steps; None for an unknown parameter.")
      .def(
          "master_value",
          [](const Masters& self, const Tensor& param) {
            return optional(self.weights.master_value(param));
          },
          py::arg("model_param"), "A float32 copy of the master; None for an unknown parameter.")
      .def("set_master_value", weights(&MasterWeights::set_master_value), py::arg("model_param"),
           py::arg("value"), "Sets the master's value to value, of any floating dtype.")
      .def_property_readonly("has_masters",
                             [](const Masters& self) { return self.weights.has_masters(); });
}

void bind_grads(MastersClass& masters) {
  masters
      .def(
          "found_inf_per_param",
          [](const Masters& self) { return optional(self.grads.found_inf_per_param()); },
          "uint8, one element per parameter: which had non-finite grads since that was "
          "cleared; None before the first backward.")
      .def("clear_found_inf_per_param", grads(&MasterGrads::clear_found_inf_per_param))
      .def_property(
          "lazy", [](const Masters& self) { return self.grads.lazy(); },
          [](Masters& self, bool lazy) { self.grads.set_lazy(lazy); },
          "Whether master grads may be deferred if a fused step does not need them.")
      .def_property_readonly(
          "is_deferred", [](const Masters& self) { return self.grads.is_deferred(); },
          "Whether the last backward's master grads are deferred.")
      .def(
          "deferred_factor",
          [](const Masters& self) -> std::optional<at::Tensor> {
            if (!self.grads.is_deferred()) return std::nullopt;
            return self.grads.deferred_factor();
          },
          "What a fused step multiplies deferred grads by, a float32 scalar on the device; None: "
          "they are not deferred.")
      .def("materialize", grads(&MasterGrads::materialize), Unlocked(),
           "Materializes deferred master grads.")
      .def("drop_master_grads", grads(&MasterGrads::drop_master_grads), Unlocked(),
           "Drops the grads of masters, materialized or deferred.");
}

void bind_syncing(MastersClass& masters) {
  masters
      .def("refresh", weights(&MasterWeights::refresh), Unlocked(),
           "Synchronizes model and masters if one was written from outside; the model wins.")
      .def("force_refresh", weights(&MasterWeights::force_refresh), Unlocked(),
           "master = float(model), regardless of the version counters.")
      .def("copy_to_model", weights(&MasterWeights::copy_to_model), Unlocked())
      .def("mark_synced", &mark_synced, py::arg("model_param") = py::none())
      .def("is_rounded_master", weights(&MasterWeights::is_rounded_master), Unlocked(),
           py::arg("model_param"),
           "Whether the model's parameter equals its master, rounded. Waits for the device.")
      .def("held_value", weights(&MasterWeights::held_value), Unlocked(), py::arg("model_param"),
           "In float32: the master's elements where the model's equal them, rounded; elsewhere the "
           "model's.")
      .def("adopt_where_held", weights(&MasterWeights::adopt_where_held), Unlocked(),
           py::arg("model_param"), py::arg("value"),
           "Sets the master's elements to value's, float32, where the model's equal them, rounded.")
      .def("adopt_data_writes", weights(&MasterWeights::adopt_data_writes), Unlocked(),
           "Sets every master to its held_value. Does not wait for the device.")
      .def(
          "prepare_release", &Masters::prepare_release, Unlocked(),
          "Before release: makes the masters what the model holds, in float32. Raises RuntimeError "
          "in a backward.")
      .def("release", weights(&MasterWeights::release), Unlocked(),
           "Gives the model's parameters their masters' memory: they become float32.");
}

using SuppressionsList = std::vector<std::shared_ptr<Suppressions>>;

/// A scope in which accesses to several optimizers' masters do not count.
class AllSuppressed {
 public:
  explicit AllSuppressed(SuppressionsList all) : all_(std::move(all)) {
    for (const auto& each : all_) scopes_.emplace_back(*each);
  }

 private:
  SuppressionsList all_;
  std::deque<Suppressed> scopes_;
};

void bind_suppressions(py::module_& module) {
  py::class_<Suppressions, std::shared_ptr<Suppressions>>(
      module, "Suppressions", "The contexts that suppress accesses to an optimizer's masters.")
      .def(py::init<>())
      .def_property_readonly("are_open", [](const Suppressions& self) { return self.open > 0; });
  bind_context<Context<AllSuppressed, SuppressionsList>>(module, "Suppressed",
                                                         "One of those contexts, for a list.")
      .def(py::init<SuppressionsList>(), py::arg("suppressions"));
}

}  // namespace

void bind_masters(py::module_& module) {
  MastersClass masters(module, "Masters", kMasters);
  masters.def(py::init<>());
  bind_tracking(masters);
  bind_grads(masters);
  bind_syncing(masters);
  bind_suppressions(module);
}

}  // namespace torchamp::python

#include <torchamp/autocast.h>

#include "autocast/open_autocast.h"
#include "python/bindings.h"
#include "python/context.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

std::unique_ptr<OpenAutocast> open_autocast(const std::vector<std::string>& device_types,
                                            c10::ScalarType dtype) {
  std::vector<c10::DeviceType> types;
  for (const auto& type : device_types) types.push_back(c10::Device(type).type());
  return std::make_unique<OpenAutocast>(std::move(types), dtype);
}

using AppliedState = Context<AppliedAutocast, AutocastState>;

std::unique_ptr<AppliedState> captured_autocast() {
  if (OpenAutocast::open_in_this_thread().empty()) return nullptr;
  return std::make_unique<AppliedState>(autocast::capture_state());
}

std::vector<std::string> shielded_device_types() {
  std::vector<std::string> types;
  const disable_casts shield;
  for (const auto type : shield.disabled()) types.push_back(c10::Device(type).str());
  return types;
}

}  // namespace

void bind_autocast(py::module_& module) {
  py::class_<OpenAutocast>(module, "OpenAutocast",
                           "Autocast from now until closed, in this thread: the casts of O1.")
      .def(py::init(&open_autocast), py::arg("device_types"), py::arg("dtype"))
      .def("close", &OpenAutocast::close);
  bind_context<Context<JoinAutocast, const OpenAutocast&>>(
      module, "JoinAutocast", "A context in which another thread casts as an OpenAutocast does.")
      .def(py::init<const OpenAutocast&>(), py::arg("opened"), py::keep_alive<1, 2>());
  bind_context<Context<disable_casts>>(module, "ShieldFromAutocast",
                                       "A context that suspends OpenAutocast in this thread.")
      .def(py::init<>());
  module.def("shielded_device_types", &shielded_device_types,
             "The device types whose autocast a ShieldFromAutocast would now switch off.");
  bind_context<Context<ShieldBackward>>(module, "ShieldBackward",
                                        "A ShieldFromAutocast around a backward.")
      .def(py::init<>());
  bind_context<AppliedState>(module, "AppliedAutocast",
                             "A context in which autocast is as it was where this was made.");
  module.def("captured_autocast", &captured_autocast,
             "This thread's autocast, to apply later; None where O1 is not open in it.");
  module.def(
      "casting_to", [](const std::string& type) { return casting_to(c10::Device(type).type()); },
      py::arg("device_type"),
      "The dtype that O1 currently casts to on a device type in this thread, or None.");
}

}  // namespace torchamp::python

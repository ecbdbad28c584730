#include <torchamp/autocast.h>

#include <optional>
#include <tuple>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

/// A scope of C++ as a context manager; it may be entered again after it was left.
template <class Scope, class... Args>
class Context {
 public:
  explicit Context(Args... args) : args_(args...) {}

  void enter() {
    std::apply([this](Args... args) { scope_.emplace(args...); }, args_);
  }
  void exit(const py::args&) { scope_.reset(); }

 private:
  std::tuple<Args...> args_;
  std::optional<Scope> scope_;
};

template <class Scope>
py::class_<Scope> bind_context(py::module_& module, const char* name, const char* doc) {
  return py::class_<Scope>(module, name, doc)
      .def("__enter__", &Scope::enter)
      .def("__exit__", &Scope::exit);
}

std::unique_ptr<OpenAutocast> open_autocast(const std::vector<std::string>& device_types,
                                            c10::ScalarType dtype) {
  std::vector<c10::DeviceType> types;
  for (const auto& type : device_types) types.push_back(c10::Device(type).type());
  return std::make_unique<OpenAutocast>(std::move(types), dtype);
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
  bind_context<Context<ShieldFromAutocast>>(module, "ShieldFromAutocast",
                                            "A context that suspends OpenAutocast in this thread.")
      .def(py::init<>());
  bind_context<Context<ShieldBackward, bool>>(module, "ShieldBackward",
                                              "A ShieldFromAutocast around a backward.")
      .def(py::init<bool>(), py::arg("was_cast"));
  bind_context<Context<CastInBackward>>(
      module, "CastInBackward", "A context that lifts the ShieldBackward this thread works for.")
      .def(py::init<>());
  module.def(
      "casting_to", [](const std::string& type) { return casting_to(c10::Device(type).type()); },
      py::arg("device_type"),
      "The dtype that O1 currently casts to on a device type in this thread, or None.");
}

}  // namespace torchamp::python

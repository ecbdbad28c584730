#include <torchamp/autocast.h>

#include <optional>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

/// ShieldFromAutocast as a context manager; it may be entered again after it was left.
class Shield {
 public:
  void enter() { shield_.emplace(); }
  void exit(const py::args&) { shield_.reset(); }

 private:
  std::optional<ShieldFromAutocast> shield_;
};

std::unique_ptr<OpenAutocast> open_autocast(const std::vector<std::string>& device_types,
                                            c10::ScalarType dtype) {
  std::vector<c10::DeviceType> types;
  for (const auto& type : device_types) types.push_back(c10::Device(type).type());
  return std::make_unique<OpenAutocast>(std::move(types), dtype);
}

}  // namespace

void bind_autocast(py::module_& module) {
  py::class_<OpenAutocast>(module, "OpenAutocast",
                           "Autocast from now until closed, in this thread: what O1 is.")
      .def(py::init(&open_autocast), py::arg("device_types"), py::arg("dtype"))
      .def("close", &OpenAutocast::close);
  py::class_<Shield>(module, "ShieldFromAutocast",
                     "A context manager that undoes what OpenAutocast does to this thread.")
      .def(py::init<>())
      .def("__enter__", &Shield::enter)
      .def("__exit__", &Shield::exit);
}

}  // namespace torchamp::python

#include <utility>
#include <vector>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

/// Calls `visit` for the keys and values of `dict`, and of those values that are dicts, in order,
/// until it returns false. Hashes nothing.
template <class Visit>
bool all_of(PyObject* dict, const Visit& visit, bool nested = true) {
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  for (Py_ssize_t left = PyDict_GET_SIZE(dict); left > 0; --left) {
    PyDict_Next(dict, &position, &key, &value);
    if (!visit(key) || !visit(value)) return false;
    if (nested && PyDict_Check(value) && !all_of(value, visit, false)) return false;
  }
  return true;
}

/// An optimizer's state as it last found it.
class SeenState {
 public:
  explicit SeenState(const py::dict& state) {
    all_of(state.ptr(), [this](PyObject* object) {
      objects_.push_back(py::reinterpret_borrow<py::object>(object));
      return true;
    });
  }

  bool is_still(const py::dict& state) const {
    auto next = objects_.begin();
    const auto is_next = [&](PyObject* object) {
      return next != objects_.end() && (next++)->ptr() == object;
    };
    return all_of(state.ptr(), is_next) && next == objects_.end();
  }

 private:
  std::vector<py::object> objects_;
};

}  // namespace

void bind_seen_state(py::module_& module) {
  py::class_<SeenState>(module, "SeenState", "The objects in an optimizer's state.")
      .def(py::init<const py::dict&>(), py::arg("state"))
      .def("is_still", &SeenState::is_still, py::arg("state"),
           "Whether those are the same objects, in the same order.");
}

}  // namespace torchamp::python

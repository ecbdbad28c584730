#include <algorithm>
#include <utility>
#include <vector>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

#if PY_VERSION_HEX < 0x030E0000

/// Identifies a dict's contents by its version (PEP 509): no dict has had that one with others.
class Contents {
 public:
  explicit Contents(PyObject* dict) : version_(version_of(dict)) {}
  bool are_in(PyObject* dict) const { return version_of(dict) == version_; }

 private:
  static uint64_t version_of(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
  }

  uint64_t version_;
};

#else  // dicts have no version

/// A dict's contents: its keys and values, in order.
class Contents {
 public:
  explicit Contents(PyObject* dict) {
    all_of(dict, [this](PyObject* object) {
      objects_.push_back(py::reinterpret_borrow<py::object>(object));
      return true;
    });
  }

  bool are_in(PyObject* dict) const {
    auto next = objects_.begin();
    const auto is_next = [&](PyObject* object) { return (next++)->ptr() == object; };
    const auto size = static_cast<size_t>(PyDict_GET_SIZE(dict));
    return 2 * size == objects_.size() && all_of(dict, is_next);
  }

 private:
  template <class Visit>
  static bool all_of(PyObject* dict, const Visit& visit) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
      if (!visit(key) || !visit(value)) return false;
    }
    return true;
  }

  std::vector<py::object> objects_;
};

#endif

/// An optimizer's state as it last found it: a dict of dicts.
class StateSnapshot {
 public:
  explicit StateSnapshot(const py::dict& state) : contents_(state.ptr()) {
    for (const auto& [key, value] : state) {
      if (!PyDict_Check(value.ptr())) continue;
      nested_.emplace_back(py::reinterpret_borrow<py::object>(value), Contents(value.ptr()));
    }
  }

  bool is_still(const py::dict& state) const {
    return contents_.are_in(state.ptr()) &&
           std::all_of(nested_.begin(), nested_.end(),
                       [](const auto& nested) { return nested.second.are_in(nested.first.ptr()); });
  }

 private:
  Contents contents_;
  std::vector<std::pair<py::object, Contents>> nested_;
};

}  // namespace

void bind_state_snapshot(py::module_& module) {
  py::class_<StateSnapshot>(module, "StateSnapshot", "What is in an optimizer's state.")
      .def(py::init<const py::dict&>(), py::arg("state"))
      .def("is_still", &StateSnapshot::is_still, py::arg("state"),
           "Whether that and its dicts hold the same objects.");
}

}  // namespace torchamp::python

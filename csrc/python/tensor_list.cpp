#include "python/tensor_list.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>

#include "ops/memory.h"
#include "python/bindings.h"

namespace torchamp::python {
namespace {

const char* type_name(PyObject* object) {
  return Py_TYPE(object)->tp_name;
}

bool is_listed(const pybind11::handle& sequence) {
  return PyList_Check(sequence.ptr()) || PyTuple_Check(sequence.ptr());
}

/// Reads the list's memory, not its __iter__.
std::vector<at::Tensor> tensors_of(const char* function, const char* argument,
                                   const pybind11::handle& sequence) {
  TORCH_CHECK_TYPE(is_listed(sequence), function, ": expected ", argument,
                   " to be a list or a tuple of tensors, got ", type_name(sequence.ptr()));
  const Py_ssize_t length = PySequence_Fast_GET_SIZE(sequence.ptr());
  PyObject** items = PySequence_Fast_ITEMS(sequence.ptr());
  std::vector<at::Tensor> tensors(length);
  for (Py_ssize_t i = 0; i < length; ++i) {
    if (items[i] == Py_None) continue;
    TORCH_CHECK_TYPE(is_tensor(items[i]), function, ": expected ", argument, "[", i,
                     "] to be a tensor or None, got ", type_name(items[i]));
    tensors[i] = THPVariable_Unpack(items[i]);
  }
  return tensors;
}

/// A group's parameters as an optimizer last found them.
class ParamsSnapshot {
 public:
  explicit ParamsSnapshot(const pybind11::handle& params)
      : params_(tensors_of("ParamsSnapshot", "params", params)) {
    for (const at::Tensor& param : params_) {
      devices_.push_back(param.device());
      dtypes_.push_back(param.scalar_type());
    }
  }

  bool are_still(const pybind11::handle& params) const {
    if (!is_listed(params)) return false;
    const auto length = static_cast<size_t>(PySequence_Fast_GET_SIZE(params.ptr()));
    PyObject** const items = PySequence_Fast_ITEMS(params.ptr());
    if (length != params_.size()) return false;
    for (size_t i = 0; i < length; ++i) {
      if (!is_tensor(items[i]) || !THPVariable_Unpack(items[i]).is_same(params_[i])) return false;
      if (params_[i].device() != devices_[i] || params_[i].scalar_type() != dtypes_[i])
        return false;
    }
    return true;
  }

 private:
  std::vector<at::Tensor> params_;
  std::vector<at::Device> devices_;
  std::vector<at::ScalarType> dtypes_;
};

void drop_grads(const pybind11::handle& params) {
  for (const at::Tensor& param : tensors_of("drop_grads", "params", params)) {
    if (param.defined()) param.mutable_grad().reset();
  }
}

}  // namespace

bool is_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

std::vector<at::Tensor> tensor_list(const char* function, const char* argument,
                                    const pybind11::handle& sequence) {
  const bool is_subclass = PyList_Check(sequence.ptr()) && !PyList_CheckExact(sequence.ptr());
  if (!is_subclass) return tensors_of(function, argument, sequence);
  const auto copy = pybind11::reinterpret_steal<pybind11::object>(PySequence_List(sequence.ptr()));
  if (!copy) throw pybind11::error_already_set();
  return tensors_of(function, argument, copy);
}

void bind_lists(pybind11::module_& module) {
  pybind11::class_<ParamsSnapshot>(
      module, "ParamsSnapshot",
      "A group's parameters as an optimizer last found them. Reads lists "
      "bypassing __iter__.")
      .def(pybind11::init<const pybind11::handle&>(), pybind11::arg("params"))
      .def("are_still", &ParamsSnapshot::are_still, pybind11::arg("params"),
           "Whether those are the same tensors, of the same devices and dtypes.");
  module.def(
      "has_memory",
      [](const at::Tensor& tensor) { return torchamp::has_memory(*tensor.unsafeGetTensorImpl()); },
      pybind11::arg("tensor"),
      "Whether its elements are in a storage of its own, wherever that is.");
  module.def("drop_grads", &drop_grads, pybind11::arg("params"), "Each one's grad becomes None.");
  module.def(
      "set_grad",
      [](const at::Tensor& param, const at::Tensor& grad) { param.mutable_grad() = grad; },
      pybind11::arg("param"), pybind11::arg("grad"),
      "Of any dtype: torch before 2.11 refuses to assign one of another.");
}

}  // namespace torchamp::python

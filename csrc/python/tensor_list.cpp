#include "python/tensor_list.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

const char* type_name(PyObject* object) {
  return Py_TYPE(object)->tp_name;
}

bool is_listed(const pybind11::handle& sequence) {
  return PyList_Check(sequence.ptr()) || PyTuple_Check(sequence.ptr());
}

/// THPVariable_Check is slow for subclasses of torch.Tensor.
bool is_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
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

bool same_objects(const pybind11::handle& one, const pybind11::handle& other) {
  if (!is_listed(one) || !is_listed(other)) return false;
  const Py_ssize_t length = PySequence_Fast_GET_SIZE(one.ptr());
  PyObject** const items = PySequence_Fast_ITEMS(one.ptr());
  return length == PySequence_Fast_GET_SIZE(other.ptr()) &&
         std::equal(items, items + length, PySequence_Fast_ITEMS(other.ptr()));
}

void drop_grads(const pybind11::handle& params) {
  for (const at::Tensor& param : tensors_of("drop_grads", "params", params)) {
    if (param.defined()) param.mutable_grad().reset();
  }
}

}  // namespace

std::vector<at::Tensor> tensor_list(const char* function, const char* argument,
                                    const pybind11::handle& sequence) {
  const bool is_subclass = PyList_Check(sequence.ptr()) && !PyList_CheckExact(sequence.ptr());
  if (!is_subclass) return tensors_of(function, argument, sequence);
  const auto copy = pybind11::reinterpret_steal<pybind11::object>(PySequence_List(sequence.ptr()));
  if (!copy) throw pybind11::error_already_set();
  return tensors_of(function, argument, copy);
}

void bind_lists(pybind11::module_& module) {
  module.def("same_objects", &same_objects, pybind11::arg("one"), pybind11::arg("other"),
             "Whether two lists hold the same objects, in one order; bypasses __iter__.");
  module.def("drop_grads", &drop_grads, pybind11::arg("params"), "Each one's grad becomes None.");
}

}  // namespace torchamp::python

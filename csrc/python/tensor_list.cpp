#include "python/tensor_list.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>

namespace torchamp::python {
namespace {

const char* type_name(PyObject* object) {
  return Py_TYPE(object)->tp_name;
}

}  // namespace

std::vector<at::Tensor> tensor_list(const char* function, const char* argument,
                                    const pybind11::handle& sequence) {
  const bool listed = PyList_Check(sequence.ptr()) || PyTuple_Check(sequence.ptr());
  TORCH_CHECK_TYPE(listed, function, ": expected ", argument,
                   " to be a list or a tuple of tensors, got ", type_name(sequence.ptr()));
  const Py_ssize_t length = PySequence_Fast_GET_SIZE(sequence.ptr());
  PyObject** items = PySequence_Fast_ITEMS(sequence.ptr());
  std::vector<at::Tensor> tensors(length);
  for (Py_ssize_t i = 0; i < length; ++i) {
    if (items[i] == Py_None) continue;
    TORCH_CHECK_TYPE(THPVariable_Check(items[i]), function, ": expected ", argument, "[", i,
                     "] to be a tensor or None, got ", type_name(items[i]));
    tensors[i] = THPVariable_Unpack(items[i]);
  }
  return tensors;
}

}  // namespace torchamp::python

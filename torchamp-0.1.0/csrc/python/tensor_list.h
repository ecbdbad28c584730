#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace torchamp::python {

/// The tensors of a Python sequence, undefined where it holds None. Throws c10::TypeError that
/// names `function` and `argument` if it is no list or tuple, or holds anything else. A subclass of
/// list is read by its __iter__.
std::vector<at::Tensor> tensor_list(const char* function, const char* argument,
                                    const pybind11::handle& sequence);

/// THPVariable_Check, which is slow for subclasses of torch.Tensor.
bool is_tensor(PyObject* object);

}  // namespace torchamp::python

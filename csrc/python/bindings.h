#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchamp::python {

void bind_build_info(pybind11::module_& module);
void bind_ops(pybind11::module_& module);

}  // namespace torchamp::python

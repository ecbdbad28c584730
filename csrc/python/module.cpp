#include "python/bindings.h"
#include "python/errors.h"

PYBIND11_MODULE(_C, module) {
  namespace py = torchamp::python;
  py::translate_errors();
  py::bind_build_info(module);
  py::bind_ops(module);
}

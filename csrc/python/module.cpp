#include "python/bindings.h"

PYBIND11_MODULE(_C, module) {
  namespace py = torchamp::python;
  py::bind_build_info(module);
}

#include <pybind11/functional.h>

#include "checkpoint/replace_file.h"
#include "python/bindings.h"

namespace torchamp::python {

void bind_checkpoint(pybind11::module_& module) {
  module.def("replace_file", &checkpoint::replace_file, pybind11::arg("path"),
             pybind11::arg("write"),
             "Calls write with the path of a new file beside `path`, which then replaces `path` at "
             "once. Raises RuntimeError where `path` cannot be written.");
}

}  // namespace torchamp::python

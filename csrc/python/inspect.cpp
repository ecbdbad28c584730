#include "inspect/same_dropout.h"
#include "python/bindings.h"
#include "python/context.h"

namespace torchamp::python {

void bind_inspect(pybind11::module_& module) {
  using inspect::SameDropout;
  bind_context<Context<SameDropout>>(
      module, "SameDropout",
      "A context in which dropout does not depend on dtypes, and fused ops have none.")
      .def(pybind11::init<>())
      .def_static("note", &SameDropout::note,
                  "What to note on the dropout left out since one was last entered, or \"\".");
}

}  // namespace torchamp::python

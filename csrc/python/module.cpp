#include "python/bindings.h"

PYBIND11_MODULE(_C, module) {
  namespace py = torchamp::python;
  py::translate_errors();
  py::send_messages_to_python();
  py::bind_build_info(module);
  py::bind_lists(module);
  py::bind_state_snapshot(module);
  py::bind_ops(module);
  py::bind_opt_level(module);
  py::bind_loss_scaler(module);
  py::bind_params(module);
  py::bind_report(module);
  py::bind_checkpoint(module);
  py::bind_core(module);
  py::bind_autocast(module);
  py::bind_float8(module);
  py::bind_fused_step(module);
  py::bind_fused_stepper(module);
  py::bind_option_table(module);
  py::bind_inspect(module);
}

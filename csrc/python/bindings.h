#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchamp::python {

/// Lets other threads run Python during the call.
using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;

void bind_autocast(pybind11::module_& module);
void bind_build_info(pybind11::module_& module);
void bind_checkpoint(pybind11::module_& module);
void bind_core(pybind11::module_& module);
void bind_float8(pybind11::module_& module);
void bind_fused_step(pybind11::module_& module);
void bind_fused_stepper(pybind11::module_& module);
void bind_inspect(pybind11::module_& module);
void bind_lists(pybind11::module_& module);
void bind_loss_scaler(pybind11::module_& module);
void bind_option_table(pybind11::module_& module);
void bind_ops(pybind11::module_& module);
void bind_opt_level(pybind11::module_& module);
void bind_params(pybind11::module_& module);
void bind_state_snapshot(pybind11::module_& module);
void bind_report(pybind11::module_& module);

/// Makes errors of torchamp's functions the Python exceptions that torch's own functions raise
/// (ValueError, TypeError, …), with the message alone and no C++ backtrace.
void translate_errors();

/// Makes torchamp's messages those of torchamp._logging, unless the program has set a sink.
void send_messages_to_python();

}  // namespace torchamp::python

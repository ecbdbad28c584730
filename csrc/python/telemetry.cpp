#include "core/optimizer_state.h"
#include "graphs/captured_iteration.h"
#include "python/bindings.h"
#include "telemetry/measure.h"
#include "telemetry/skip_messages.h"

namespace torchamp::python {
namespace {

namespace py = pybind11;

std::vector<std::pair<int, std::string>> levels_and_texts(
    const SkippedStep& step, const std::vector<std::string>& names,
    const std::function<std::string()>& in_float8) {
  std::vector<std::pair<int, std::string>> result;
  for (LogMessage& message : messages_of(step, names, in_float8)) {
    result.emplace_back(static_cast<int>(message.level), std::move(message.text));
  }
  return result;
}

py::tuple known(const LateReport& report) {
  const Telemetry& known = report.known();
  return py::make_tuple(known.steps, known.skipped_steps, known.stepped,
                        py::tuple(py::cast(known.loss_scales)));
}

using StatesAndReports =
    std::vector<std::pair<std::shared_ptr<core::OptimizerState>, std::shared_ptr<LateReport>>>;

void bind_captured_iteration(py::module_& module) {
  py::class_<CapturedIteration>(
      module, "CapturedIteration",
      "What the host does around an iteration that a CUDA graph replays. Made before the "
      "capture.")
      .def(py::init([](const StatesAndReports& optimizers) {
             std::vector<CapturedIteration::Stepped> stepped;
             for (const auto& [state, report] : optimizers) stepped.push_back({state, report});
             return std::make_unique<CapturedIteration>(std::move(stepped));
           }),
           py::arg("optimizers"))
      .def("note_step", &CapturedIteration::note_step, py::arg("state"),
           "Before a step in the capture. Raises RuntimeError if it is of another optimizer, or "
           "uses "
           "a grad of before the capture.")
      .def("end", &CapturedIteration::end, Unlocked(),
           "In the capture, after the iteration. Raises RuntimeError unless all have stepped.")
      .def("cancel", &CapturedIteration::cancel, Unlocked(),
           "After a capture that has failed: grads are as before it.")
      .def("is_current", &CapturedIteration::is_current,
           "Whether parameters and masters are those of the capture, in the same memory.")
      .def("before_replay", &CapturedIteration::before_replay, Unlocked(),
           "Model and masters follow what the program has written.")
      .def("after_replay", &CapturedIteration::after_replay, Unlocked(),
           "Leaves the iteration's grads; its steps are counted once the device has reported.");
}

}  // namespace

void bind_report(py::module_& module) {
  module.def("measure", &measure, Unlocked(), py::arg("scale"), py::arg("state"),
             "float32 [4] on the device: loss scale, norm of the unscaled grads, their shares of "
             "zeros and of elements that are subnormal in float16 when scaled.");
  py::class_<SkippedStep>(module, "SkippedStep", "A step that the device skipped.")
      .def_readonly("first", &SkippedStep::first,
                    "The first parameters whose grad was not finite, as indices into "
                    "model_params().")
      .def_readonly("in_a_row", &SkippedStep::in_a_row,
                    "The skipped steps since the last one that was taken.")
      .def_property_readonly("is_loss_finite", &is_loss_finite,
                             "Whether its losses are finite, so that a loss scale may help.")
      .def("messages", &levels_and_texts, py::arg("names"), py::arg("in_float8"),
           "What reports it, as logging's levels and texts; names: of the parameters in first; "
           "in_float8: Float8.nonfinite, or None.")
      .def("check_in_a_row", &check_in_a_row, py::arg("max_in_a_row"),
           "Raises RuntimeError if it is that many in a row.");
  py::class_<core::Observer, std::shared_ptr<core::Observer>>(
      module, "Observer", "Observes what an OptimizerState does.");
  py::class_<LateReport, core::Observer, std::shared_ptr<LateReport>>(
      module, "LateReport", "Counts one optimizer's steps as the device reports them.")
      .def(py::init<>())
      .def("flush", &LateReport::flush,
           "Counts the steps that the device has reported. Returns the skipped ones.")
      .def("known", &known,
           "(steps, skipped_steps, stepped, loss_scales), as flush() has counted.");
  bind_captured_iteration(module);
}

}  // namespace torchamp::python

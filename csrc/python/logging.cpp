#include <torchamp/logging.h>

#include "python/bindings.h"

namespace torchamp::python {
namespace {

void log_in_python(LogLevel level, const std::string& message) {
  const pybind11::gil_scoped_acquire gil;
  const auto logging = pybind11::module_::import("torchamp._logging");
  if (level == LogLevel::kWarning) {
    logging.attr("warn")(message);
  } else {
    logging.attr("log")(static_cast<int>(level), message);
  }
}

}  // namespace

void send_messages_to_python() {
  if (LogSink of_program = set_log_sink(log_in_python)) set_log_sink(of_program);
}

}  // namespace torchamp::python

// Where torchamp's messages go: std::clog, or a program's logger.
#pragma once

#include <torchamp/detail/export.h>

#include <functional>
#include <string>

namespace torchamp {

/// How much a message matters; the numbers are those of Python's logging.
enum class LogLevel {
  kInfo = 20,     ///< a skipped step
  kWarning = 30,  ///< what is probably a mistake
};

/// Takes a message of one line, without a newline. May be called by several threads at a time.
using LogSink = std::function<void(LogLevel level, const std::string& message)>;

/// Sends the messages of the process to `sink` from now on; an empty one writes them to std::clog,
/// after "torchamp: ", which is the default. Returns the sink before, for restoring it.
///
///     torchamp::set_log_sink([](torchamp::LogLevel level, const std::string& message) {
///       level == torchamp::LogLevel::kInfo ? spdlog::info(message) : spdlog::warn(message);
///     });
TORCHAMP_API LogSink set_log_sink(LogSink sink);

/// Gives the sink a message. What the sink throws reaches the caller.
TORCHAMP_API void log_message(LogLevel level, const std::string& message);

}  // namespace torchamp

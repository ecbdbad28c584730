#include <torchamp/logging.h>

#include <iostream>
#include <mutex>
#include <utility>

namespace torchamp {
namespace {

std::mutex& mutex() {
  static std::mutex instance;
  return instance;
}

LogSink& current_sink() {
  static auto& instance = *new LogSink;
  return instance;
}

}  // namespace

LogSink set_log_sink(LogSink sink) {
  const std::lock_guard<std::mutex> lock(mutex());
  return std::exchange(current_sink(), std::move(sink));
}

void log_message(LogLevel level, const std::string& message) {
  std::unique_lock<std::mutex> lock(mutex());
  const LogSink sink = current_sink();
  lock.unlock();  // the sink may log, or be replaced by what it calls
  if (sink) return sink(level, message);
  std::clog << "torchamp: " + message + '\n';
}

}  // namespace torchamp

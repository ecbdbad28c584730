// Error messages and what is logged, in tests.
#pragma once

#include <c10/util/Exception.h>
#include <torchamp/logging.h>

#include <string>

namespace torchamp {

/// The message of the Error that `call` throws, without a backtrace; "no error" if it returns.
template <class Error = std::exception, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    const auto* torchs = dynamic_cast<const c10::Error*>(&error);
    return torchs != nullptr ? torchs->what_without_backtrace() : error.what();
  }
  return "no error";
}

/// Captures what torchamp logs while it lives, a message a line.
class Logged {
 public:
  Logged() {
    before_ =
        set_log_sink([this](LogLevel, const std::string& message) { text_ += message + '\n'; });
  }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;
  ~Logged() { set_log_sink(before_); }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  LogSink before_;
};

/// Whether `text` contains `part`.
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace torchamp

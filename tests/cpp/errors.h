// Error messages in tests.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torchamp {

/// The message of the exception that `call` throws, without a backtrace; "no error" if it returns.
template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

/// Whether `text` contains `part`.
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace torchamp

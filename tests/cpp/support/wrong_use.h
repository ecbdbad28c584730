// Tables of mistakes: programs that use torchamp wrongly, and what each must get.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <ostream>
#include <regex>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace torchamp::wrong_use {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A mistake's outcome for the program.
struct Outcome {
  const std::type_info* error;  ///< the exception's type; null: there is none
  std::string words;            ///< a regular expression for its message, or for the one warning
};

/// An exception of exactly this type: where the program is certainly wrong.
template <class Exception = c10::Error>
Outcome error(std::string words) {
  return {&typeid(Exception), std::move(words)};
}

/// Where it may be meant.
inline Outcome warning(std::string words) {
  return {nullptr, std::move(words)};
}

/// Neither, because there is one right result, which the program checks.
inline Outcome right() {
  return {nullptr, ""};
}

struct WrongUse {
  std::string name;
  std::function<void()> program;
  Outcome outcome;
};

inline std::ostream& operator<<(std::ostream& out, const WrongUse& use) {
  return out << use.name;
}

inline std::string name_of(const ::testing::TestParamInfo<WrongUse>& info) {
  return info.param.name;
}

/// Captures the warnings of torchamp and LibTorch while it lives.
class CapturedWarnings : c10::WarningHandler {
 public:
  CapturedWarnings() : before_(std::clog.rdbuf(lines_.rdbuf())) {}
  ~CapturedWarnings() override { std::clog.rdbuf(before_); }

  std::vector<std::string> warnings() const {
    std::vector<std::string> found;
    std::istringstream lines(lines_.str());
    for (std::string line; std::getline(lines, line);) found.push_back(line);
    return found;
  }

 private:
  void process(const c10::Warning& warning) override { lines_ << warning.msg() << '\n'; }

  std::ostringstream lines_;
  std::streambuf* before_;
  c10::WarningUtils::WarnAlways always_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// Runs the program, and compares what it gets.
inline void check(const WrongUse& use) {
  const std::regex words(use.outcome.words);
  const std::type_info* type = nullptr;
  std::string message = "no error";
  std::vector<std::string> warnings;
  {
    const CapturedWarnings captured;
    try {
      use.program();
    } catch (const c10::Error& error) {
      type = &typeid(error);
      message = error.what_without_backtrace();
    } catch (const std::exception& error) {
      type = &typeid(error);
      message = error.what();
    }
    warnings = captured.warnings();
  }
  const bool is_refused = use.outcome.error != nullptr;
  EXPECT_EQ(type == nullptr, !is_refused) << message;
  if (is_refused && type != nullptr) {
    EXPECT_STREQ(type->name(), use.outcome.error->name()) << message;
    EXPECT_TRUE(std::regex_search(message, words)) << message;
  }
  const bool is_warned = !is_refused && !use.outcome.words.empty();
  EXPECT_EQ(warnings.size(), is_warned ? 1U : 0U) << ::testing::PrintToString(warnings);
  if (is_warned && !warnings.empty()) {
    EXPECT_TRUE(std::regex_search(warnings[0], words)) << warnings[0];
  }
}

}  // namespace torchamp::wrong_use

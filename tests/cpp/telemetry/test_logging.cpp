// Messages go to the program's sink, or to std::clog.
#include <torchamp/logging.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

class LoggingTest : public testing::Test {
 protected:
  LoggingTest() : clog_(std::clog.rdbuf(written_.rdbuf())), sink_(set_log_sink({})) {}
  ~LoggingTest() override {
    std::clog.rdbuf(clog_);
    set_log_sink(sink_);
  }

  LogSink collecting() {
    return [this](LogLevel level, const std::string& message) {
      messages_.emplace_back(level, message);
    };
  }

  std::ostringstream written_;
  std::vector<std::pair<LogLevel, std::string>> messages_;

 private:
  std::streambuf* clog_;
  LogSink sink_;
};

TEST_F(LoggingTest, IsClogByDefault) {
  log_message(LogLevel::kInfo, "one");
  EXPECT_EQ(written_.str(), "torchamp: one\n");
}

TEST_F(LoggingTest, ASinkTakesMessagesWithTheirLevelUntilItIsReplaced) {
  set_log_sink(collecting());
  log_message(LogLevel::kWarning, "two");
  const LogSink mine = set_log_sink({});
  log_message(LogLevel::kInfo, "three");
  EXPECT_EQ(messages_,
            (std::vector<std::pair<LogLevel, std::string>>{{LogLevel::kWarning, "two"}}));
  EXPECT_EQ(written_.str(), "torchamp: three\n");
  mine(LogLevel::kInfo, "four");
  EXPECT_EQ(messages_.size(), 2u);
}

TEST_F(LoggingTest, ASinkMayLogAndThrow) {
  set_log_sink([](LogLevel, const std::string&) {
    set_log_sink({});
    log_message(LogLevel::kInfo, "from the sink");
    throw std::runtime_error("full");
  });
  EXPECT_THROW(log_message(LogLevel::kInfo, "five"), std::runtime_error);
  EXPECT_EQ(written_.str(), "torchamp: from the sink\n");
}

TEST_F(LoggingTest, SkippedStepsAndMistakesReachTheSink) {
  set_log_sink(collecting());
  Training training(at::kCPU, Options("O2").verbosity(1));
  training.optimizer().step();
  for (int step = 0; step < 10; ++step) {
    training.optimizer().zero_grad();
    scale_loss(training.loss() * INFINITY, training.optimizer()).backward();
    training.optimizer().step();
  }
  ASSERT_EQ(messages_.size(), 12u);
  EXPECT_EQ(messages_[0].first, LogLevel::kWarning);
  EXPECT_PRED2(contains, messages_[0].second, "expected grads, got none");
  EXPECT_EQ(messages_[1].first, LogLevel::kInfo);
  EXPECT_EQ(messages_[11].first, LogLevel::kWarning);
  EXPECT_EQ(written_.str(), "");
}

}  // namespace
}  // namespace torchamp

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "inspect/op_watch.h"

namespace torchamp::inspect {
namespace {

class Counter : public CountedOps {
 public:
  int64_t count() const { return count_; }

 protected:
  void see(const WatchedOp&) override { ++count_; }

 private:
  std::atomic<int64_t> count_{0};
};

/// Blocks a thread at the end of its op "sin", from construction until let_end().
class BlockedSin {
 public:
  BlockedSin() {
    reached_ = {};
    may_end_ = {};
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
  }
  void wait_for_its_end() { reached_.get_future().wait(); }
  void let_end() {
    at::removeCallback(handle_);
    may_end_.set_value();
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) { return nullptr; }
  static void end(const at::RecordFunction& record, at::ObserverContext*) {
    if (std::string(record.name()) != "aten::sin") return;
    reached_.set_value();
    may_end_.get_future().wait();
  }

  static inline std::promise<void> reached_, may_end_;
  at::CallbackHandle handle_;
};

TEST(OpWatchTest, AnOpThatOutlivesAWatchHidesNoLaterOne) {
  BlockedSin sin;
  std::promise<void> is_over;
  std::future<int64_t> later;
  {
    const OpWatch watch(std::make_shared<Counter>(), "first");
    later = std::async(std::launch::async, [&] {
      at::ones({2}).sin();
      is_over.get_future().wait();
      const auto counter = std::make_shared<Counter>();
      const OpWatch second(counter, "second");
      at::ones({2}).cos();
      return counter->count();
    });
    sin.wait_for_its_end();
  }
  sin.let_end();
  is_over.set_value();
  EXPECT_EQ(later.get(), 2);  // ones and cos
}

TEST(OpWatchTest, AnOpThatOutlivesAWatchIsInNone) {
  const auto counter = std::make_shared<Counter>(), later = std::make_shared<Counter>();
  BlockedSin sin;
  std::future<void> in_thread;
  {
    const OpWatch watch(counter, "first");
    in_thread = std::async(std::launch::async, [] { at::ones({2}).sin(); });
    sin.wait_for_its_end();
  }
  const OpWatch second(later, "second");
  sin.let_end();
  in_thread.get();
  EXPECT_EQ(counter->count(), 1);  // ones
  EXPECT_EQ(later->count(), 0);
}

}  // namespace
}  // namespace torchamp::inspect

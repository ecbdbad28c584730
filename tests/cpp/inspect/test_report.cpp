#include <ATen/record_function.h>
#include <torchamp/optim/adam.h>
#include <torchamp/overflow_trace.h>
#include <torchamp/report.h>

#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <string>

#include "device.h"
#include "training.h"

namespace torchamp {
namespace {

class ReportTest : public DeviceTest {};

struct Sizes {
  int64_t elements = 0;       ///< of parameters
  int64_t kept = 0;           ///< of those, in batch norms
  int64_t buffers_bytes = 0;  ///< of all buffers
};

Sizes sizes_of(const Net& net) {
  Sizes sizes;
  for (const auto& param : net->parameters()) {
    sizes.elements += param.numel();
    if (param.scalar_type() == at::kFloat) sizes.kept += param.numel();
  }
  for (const auto& buffer : net->buffers()) {
    sizes.buffers_bytes += static_cast<int64_t>(buffer.nbytes());
  }
  return sizes;
}

TEST_P(ReportTest, CountsAtO2) {
  Training training(device(), Options("O2").verbosity(0));
  const Sizes sizes = sizes_of(training.net);
  const int64_t low = sizes.elements - sizes.kept;
  const MemoryReport before = report(*training.net, training.optimizer());
  EXPECT_EQ(before.bytes.weights, 2 * low + 4 * sizes.kept + sizes.buffers_bytes);
  EXPECT_EQ(before.bytes.masters, 4 * low);
  EXPECT_EQ(before.bytes.grads, 4 * sizes.elements);
  EXPECT_EQ(before.bytes.state, 0);
  training.step();
  const MemoryReport after = report(*training.net, training.optimizer());
  EXPECT_EQ(after.bytes.grads, before.bytes.grads);
  EXPECT_EQ(after.bytes.state, 4 * sizes.elements);
  EXPECT_EQ(after.float32_total, 3 * 4 * sizes.elements + sizes.buffers_bytes);
  const MemoryReport of_model = report(training.amped.model, training.optimizer());
  EXPECT_EQ(of_model.bytes.total(), after.bytes.total());
  EXPECT_FALSE(of_model.activations.has_value());
}

TEST_P(ReportTest, GradsIn16Bits) {
  for (const Options& options : {Options("O5"), Options("O2").materialize_master_grads(false)}) {
    const Net net = make_net(device(), 1);
    optim::FusedAdam adam(net->parameters(), optim::FusedAdamOptions(1e-3));
    auto amped = initialize(net, adam, Options(options).keep_batchnorm_fp32(false).verbosity(0));
    const Sizes sizes = sizes_of(net);
    const MemoryReport found = report(*amped.model, amped.optimizer);
    EXPECT_EQ(found.bytes.masters, 4 * sizes.elements);
    EXPECT_EQ(found.bytes.grads, 2 * sizes.elements);
  }
}

TEST_P(ReportTest, HasARowAModule) {
  Training training(device(), Options("O2").verbosity(0));
  const MemoryReport found = report(*training.net, training.optimizer());
  ASSERT_EQ(found.rows.size(), training.net->named_modules().size());
  EXPECT_EQ(found.rows.front().name, "");
  Bytes sum;
  for (const auto& row : found.rows) sum += row.bytes;
  EXPECT_EQ(sum.total(), found.bytes.total());
  std::ostringstream text;
  text << found;
  EXPECT_EQ(text.str().find("O2 (weights: float16"), 0U) << text.str();
  for (const auto& row : found.rows) EXPECT_NE(text.str().find(row.type), std::string::npos);
}

TEST_P(ReportTest, CountsTheOpsOfAForward) {
  for (const char* level : {"O0", "O1", "O2"}) {
    Training training(device(), Options(level).verbosity(0));
    const auto forward = [&] {
      at::Tensor output;
      {
        RECORD_USER_SCOPE("net");
        output = training.amped.model(training.batch.data);
      }
      return output.square().mean();
    };
    const MemoryReport found = report(*training.net, training.optimizer(), forward);
    ASSERT_EQ(found.scopes.size(), 2U) << level;
    const ScopeRow& net = found.scopes[0];
    EXPECT_EQ(net.scope, "net");
    EXPECT_EQ(net.ops.count(at::kHalf), level[1] == '0' ? 0U : 1U) << level;
    EXPECT_EQ(net.casts_down > 0, level[1] != '0') << level;
    const ScopeRow& loss = found.scopes[1];
    EXPECT_EQ(loss.scope, "");
    EXPECT_EQ(loss.ops.at(at::kFloat), 2) << level;  // pow and mean
    EXPECT_EQ(loss.casts_down, 0) << level;
    EXPECT_EQ(loss.casts_up, 0) << level;
    EXPECT_GT(*found.activations, training.batch.data.numel() * 2);
    std::ostringstream text;
    text << found;
    EXPECT_NE(text.str().find("KiB of activations\n\nscope"), std::string::npos) << text.str();
  }
}

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

size_t count_ops(Training& training, const std::function<at::Tensor()>& forward) {
  return report(*training.net, training.optimizer(), forward).scopes.size();
}

TEST_P(ReportTest, AnOpThatOutlivesAReportHidesNoLaterOne) {
  Training training(device(), Options("O0").verbosity(0));
  BlockedSin sin;
  std::promise<void> is_over;
  std::future<size_t> later;
  count_ops(training, [&] {
    later = std::async(std::launch::async, [&] {
      at::ones({2}, device()).sin();
      is_over.get_future().wait();
      return count_ops(training, [&] { return at::ones({2}, device()) + 1.0; });
    });
    sin.wait_for_its_end();
    return at::ones({2}, device());
  });
  sin.let_end();
  is_over.set_value();
  EXPECT_EQ(later.get(), 1U);
}

TEST_P(ReportTest, AnOpThatOutlivesAReportIsInNoLaterTrace) {
  Training training(device(), Options("O0").verbosity(0));
  const at::Tensor infinite = at::full({2}, INFINITY, device());
  BlockedSin sin;
  std::future<void> in_thread;
  count_ops(training, [&] {
    in_thread = std::async(std::launch::async, [&] { infinite.sin(); });
    sin.wait_for_its_end();
    return at::ones({2}, device());
  });
  const OverflowTrace trace;
  sin.let_end();
  in_thread.get();
  EXPECT_FALSE(trace.origin());
}

TORCHAMP_ON_EACH_DEVICE(ReportTest);

}  // namespace
}  // namespace torchamp

// Steps by grads that are all zero although the loss is not.
#include <torchamp/optim/adam.h>
#include <torchamp/telemetry.h>

#include <functional>
#include <iostream>
#include <sstream>

#include "training.h"

namespace torchamp {
namespace {

/// So small that every float16 grad is zero, at the scales of these tests.
constexpr double kVanishing = 0x1p-60;

std::string printed(const std::function<void()>& call) {
  std::ostringstream heard;
  auto* const before = std::clog.rdbuf(heard.rdbuf());
  call();
  std::clog.rdbuf(before);
  return heard.str();
}

/// A network and its optimizer, whose telemetry counts.
template <class Own, class OwnOptions>
struct Counted {
  Counted(at::Device device, const OwnOptions& own_options, const Options& options)
      : net(make_net(device)),
        batch(make_batch(device)),
        own(net->parameters(), own_options),
        amped(initialize(net, own, options)) {
    telemetry(amped.optimizer);
  }

  void backward(double factor, const ScaleLossOptions& options = {}) {
    scale_loss(loss_of(amped.model(batch.data), batch.target) * factor, amped.optimizer, options)
        .backward();
  }
  /// Reading the scale waits for all queued work.
  Telemetry known() {
    amped.model.amp()->loss_scaler().loss_scale();
    return telemetry(amped.optimizer);
  }
  /// A step of as many micro-batches as factors; whether it underflowed.
  bool step(const std::vector<double>& factors, const ScaleLossOptions& options = {}) {
    amped.optimizer.zero_grad();
    for (size_t i = 0; i + 1 < factors.size(); ++i) backward(factors[i], options);
    backward(factors.back());
    amped.optimizer.step();
    return known().underflowed;
  }

  Net net;
  Batch batch;
  Own own;
  Amped<Net> amped;
};

/// Every level, scale and kind of optimizer of these tests.
class UnderflowTest : public LevelTest {
 protected:
  using Visit =
      std::function<void(const std::function<bool(std::vector<double>, ScaleLossOptions)>&,
                         const std::function<Telemetry()>&)>;

  template <class Own, class OwnOptions>
  static void with(const OwnOptions& own_options, const Options& options, const Visit& visit) {
    Counted<Own, OwnOptions> counted(device(), own_options, options);
    visit([&](const auto& factors, const auto& delay) { return counted.step(factors, delay); },
          [&] { return counted.known(); });
  }

  static void for_each(const Visit& visit, int verbosity = 0) {
    for (const LossScale& loss_scale : {LossScale("dynamic"), LossScale(0x1p-10)}) {
      const Options options = Options(level()).loss_scale(loss_scale).verbosity(verbosity);
      const optim::FusedAdamOptions adam(1e-3);
      with<torch::optim::SGD>(torch::optim::SGDOptions(0.1), options, visit);
      with<optim::FusedAdam>(adam, options, visit);
      with<optim::FusedAdam>(adam, Options(options).materialize_master_grads(false), visit);
    }
  }
};

TEST_P(UnderflowTest, IsToldFromAStepThatMoves) {
  for_each([](const auto& step, const auto& known) {
    EXPECT_FALSE(step({1}, {}));
    EXPECT_TRUE(step({kVanishing}, {}));
    EXPECT_EQ(known().stepped, true);
    EXPECT_FALSE(step({1}, {}));
    EXPECT_FALSE(step({0}, {}));
    EXPECT_TRUE(step({kVanishing}, {}));
    EXPECT_EQ(known().steps, 5);
    EXPECT_EQ(known().skipped_steps, 0);
    EXPECT_EQ(known().underflowed_steps, 2);
  });
}

TEST_P(UnderflowTest, IsOneOfAllMicroBatches) {
  const ScaleLossOptions eager, delayed{0, /*delay_unscale=*/true},
      deferred{0, false, /*delay_overflow_check=*/true};
  for (const ScaleLossOptions& delay : {eager, delayed, deferred}) {
    for_each([&](const auto& step, const auto&) {
      EXPECT_TRUE(step({kVanishing, kVanishing}, delay));
      EXPECT_TRUE(step({0, kVanishing}, delay));
      EXPECT_EQ(step({kVanishing, 0}, delay), !delay.delay_unscale);
      EXPECT_FALSE(step({0, 0}, delay));
      EXPECT_FALSE(step({1, kVanishing, kVanishing}, delay));
      EXPECT_FALSE(step({kVanishing, 1, kVanishing}, delay));
      EXPECT_FALSE(step({kVanishing, kVanishing, 1}, delay));
    });
  }
}

TEST_P(UnderflowTest, TheFirstIsReported) {
  for (const int verbosity : {0, 1}) {
    for_each(
        [&](const auto& step, const auto&) {
          EXPECT_EQ(printed([&] { step({1}, {}); }), "");
          const std::string said = printed([&] { step({kVanishing}, {}); });
          EXPECT_EQ(said.find("torchamp: gradient underflow in loss 0: step taken with gradients "
                              "that are all zero although the loss is not, loss scale now "),
                    verbosity == 1 ? 0 : std::string::npos)
              << said;
          EXPECT_EQ(printed([&] { step({kVanishing}, {}); }), "");
        },
        verbosity);
  }
}

TORCHAMP_AT_LEVELS(UnderflowTest, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp

// Every short sequence of backwards, zeroings and steps, as in Python's test_grad_states.py: a
// step uses the sum of the grads of all backwards since the last zeroing or step, each unscaled by
// its own scale. Non-finite grads are never applied, and a skipped step discards its grads.
#include <torchamp/optim/sgd.h>

#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/param.h"
#include "errors.h"
#include "net.h"

namespace elsewhere {

constexpr double kStart = 8.0;

/// One parameter that O2 casts, and one that it keeps in float32.
struct PairImpl : torch::nn::Module {
  PairImpl() { torch::nn::init::constant_(kept->weight, kStart); }
  /// The sum of both parameters' elements times `grad`.
  at::Tensor loss(double grad) {
    return (cast.to(at::kFloat).sum() + kept->weight.to(at::kFloat).sum()) * grad;
  }

  at::Tensor cast = register_parameter("cast", torchamp::tensor_of({kStart, kStart}));
  torch::nn::BatchNorm1d kept = register_module("kept", torch::nn::BatchNorm1d(2));
};
TORCH_MODULE(Pair);

}  // namespace elsewhere

namespace torchamp {
namespace {

using elsewhere::kStart;

constexpr std::array<double, 2> kScales = {256.0, 64.0};

/// How the parameters are trained.
struct Way {
  OptLevel level;
  bool is_fused = false;
};

std::unique_ptr<torch::optim::Optimizer> sgd_of(const Way& way, const elsewhere::Pair& pair) {
  const auto params = pair->parameters();
  if (way.is_fused) {
    return std::make_unique<optim::FusedSGD>(params, optim::FusedSGDOptions(1.0));
  }
  return std::make_unique<torch::optim::SGD>(params, torch::optim::SGDOptions(1.0));
}

/// Applies events to a model and its optimizer.
class Run {
 public:
  explicit Run(const Way& way)
      : sgd_(sgd_of(way, pair_)),
        amped_(initialize(
            pair_, *sgd_,
            quiet(way.level).loss_scale("dynamic").num_losses(2).materialize_master_grads(
                !way.is_fused))) {
    for (int64_t i = 0; i < 2; ++i) scaler(i).set_loss_scale(kScales[i]);
  }

  void backward(double grad, ScaleLossOptions options = {}) {
    scale_loss(pair_->loss(grad), amped_.optimizer, options).backward();
  }
  void raise(double grad) {
    const auto body = [](const at::Tensor& scaled_loss) {
      scaled_loss.backward();
      throw std::out_of_range("a program's own");
    };
    EXPECT_THROW(scale_loss(pair_->loss(grad), amped_.optimizer, body), std::out_of_range);
  }
  void do_nothing(double grad) { const scale_loss empty(pair_->loss(grad), amped_.optimizer); }
  void move_scale() { scaler(0).set_loss_scale(2 * kScales[0]); }
  void zero() { amped_.optimizer.zero_grad(); }
  void zero_model() { pair_->zero_grad(); }
  void step() { amped_.optimizer.step(); }

  /// The cast parameter's master and the kept parameter; all elements are equal.
  std::array<double, 2> values() {
    const at::Tensor cast = core::param_of(pair_->cast)->master.to(at::kFloat);
    return {cast[0].item<double>(), pair_->kept->weight[0].item<double>()};
  }

 private:
  LossScaler& scaler(int64_t i) { return amped_.model.amp()->loss_scaler(i); }

  elsewhere::Pair pair_;
  std::unique_ptr<torch::optim::Optimizer> sgd_;
  Amped<elsewhere::Pair> amped_;
};

/// The same for two numbers, a parameter with a master and one without.
class Rule {
 public:
  explicit Rule(const Way& way) : keeps_grads_{way.level != OptLevel::O2, true} {}

  void forget() {
    sums_ = {};
    is_bad_ = false;
    delayed_.reset();
  }
  /// Delayed grads of another scale are unscaled first.
  void enter(int64_t loss_id) {
    if (delayed_ != scale_of(loss_id)) delayed_.reset();
  }
  void backward(double grad, const ScaleLossOptions& options) {
    delayed_ = options.delay_unscale ? std::optional(scale_of(options.loss_id)) : std::nullopt;
    is_bad_ |= std::isinf(grad);
    times_moved_ += std::isinf(grad) && !options.delay_unscale;
    for (auto& sum : sums_) sum = sum.value_or(0.0) + grad;
  }
  void do_nothing() { delayed_.reset(); }
  void move_scale() { ++times_moved_; }
  void step() {
    if (is_bad_) return forget();
    for (int i = 0; i < 2; ++i) {
      values_[i] -= sums_[i].value_or(0.0);
      if (!keeps_grads_[i]) sums_[i].reset();
    }
  }

  bool is_delayed() const { return delayed_.has_value(); }
  const std::array<double, 2>& values() const { return values_; }

 private:
  using Scale = std::pair<int64_t, int>;
  Scale scale_of(int64_t loss_id) const { return {loss_id, loss_id == 0 ? times_moved_ : 0}; }

  std::array<double, 2> values_ = {kStart, kStart};
  std::array<bool, 2> keeps_grads_;
  std::array<std::optional<double>, 2> sums_;
  bool is_bad_ = false;
  std::optional<Scale> delayed_;  ///< the scale of delayed grads
  int times_moved_ = 0;
};

struct Event {
  std::string name;
  std::function<void(Run&, double)> on_run;
  std::function<void(Rule&, double)> on_rule;
};

Event backward(std::string name, ScaleLossOptions options, std::optional<double> always = {}) {
  return {std::move(name),
          [=](Run& run, double grad) { run.backward(always.value_or(grad), options); },
          [=](Rule& rule, double grad) { rule.backward(always.value_or(grad), options); }};
}

const std::vector<Event>& events() {
  static const std::vector<Event> all = {
      backward("backward", {}),
      backward("other loss", {1}),
      backward("delayed", {0, true}),
      backward("other delayed", {1, true}),
      backward("overflow", {}, INFINITY),
      backward("delayed overflow", {0, true}, INFINITY),
      {"raising", &Run::raise, [](Rule& rule, double) { rule.enter(0); }},
      {"empty", &Run::do_nothing, [](Rule& rule, double) { rule.do_nothing(); }},
      {"move scale", [](Run& run, double) { run.move_scale(); },
       [](Rule& rule, double) { rule.move_scale(); }},
      {"zero", [](Run& run, double) { run.zero(); }, [](Rule& rule, double) { rule.forget(); }},
      {"zero model", [](Run& run, double) { run.zero_model(); },
       [](Rule& rule, double) { rule.forget(); }},
      {"step", [](Run& run, double) { run.step(); }, [](Rule& rule, double) { rule.step(); }},
  };
  return all;
}

/// A step ends the sequence; while grads are delayed, it throws and changes nothing.
void check(const Way& way, std::vector<const Event*> sequence) {
  Run run(way);
  Rule rule(way);
  sequence.push_back(&events().back());
  std::string so_far;
  double grad = 1.0 / 64;  // powers of two, so that sums identify their terms
  for (const Event* event : sequence) {
    so_far += " / " + event->name;
    if (event->name == "step" && rule.is_delayed()) {
      EXPECT_THROW(run.step(), c10::Error) << so_far;
    } else {
      event->on_run(run, grad);
      event->on_rule(rule, grad);
    }
    ASSERT_EQ(run.values(), rule.values()) << so_far;
    grad *= 2;
  }
}

class GradStatesTest : public testing::TestWithParam<Way> {};

TEST_P(GradStatesTest, FollowTheRuleThroughEverySequence) {
  for (const Event& first : events()) {
    for (const Event& second : events()) {
      for (const Event& third : events()) {
        check(GetParam(), {&first, &second, &third});
        if (HasFatalFailure()) return;
      }
    }
  }
}

std::string name_of(const testing::TestParamInfo<Way>& info) {
  const Way& way = info.param;
  return std::string(name(way.level)) + (way.is_fused ? "Fused" : "");
}

INSTANTIATE_TEST_SUITE_P(At, GradStatesTest,
                         testing::Values(Way{OptLevel::O1}, Way{OptLevel::O1, true},
                                         Way{OptLevel::O2}, Way{OptLevel::O2, true},
                                         Way{OptLevel::O3}, Way{OptLevel::O3, true}),
                         name_of);

}  // namespace
}  // namespace torchamp

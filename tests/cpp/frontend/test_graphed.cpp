// An iteration as a graph: what runs when, what is noticed between calls, and what is refused. On a
// CPU, with a stand-in for the graph; test_simulated_cuda has the kernels' launches.
#include <torchamp/detail/graphed.h>
#include <torchamp/logging.h>
#include <torchamp/optim/adam.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/param.h"
#include "errors.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

const char* const kNoWholeIteration =
    "graphed: expected a function that begins with zero_grad() and ends with step(), got ";

/// A net and its optimizer, and an iteration of them.
template <class O = optim::FusedAdam>
struct Iterated {
  explicit Iterated(OptLevel level, bool enabled = true)
      : net(make_net(at::kCPU)),
        optimizer(net->parameters(), 0.01),
        amped(initialize(net, optimizer, quiet(level).enabled(enabled))) {}

  Tensor iteration(const Tensor& data, const Tensor& target) {
    amped.optimizer.zero_grad();
    const Tensor loss = loss_of(amped.model(data), target);
    scale_loss(loss, amped.optimizer).backward();
    amped.optimizer.step();
    return loss.detach();
  }
  /// What an iteration may write.
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> all;
    for (const auto& buffer : net->buffers()) all.push_back(buffer);
    for (const Tensor& param : net->parameters()) {
      all.push_back(param);
      const auto known = core::param_of(param);
      if (known != nullptr && known->has_master()) all.push_back(known->master);
      const auto state = optimizer.state().find(param.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      if (auto* own = dynamic_cast<optim::FusedParamState*>(state->second.get())) {
        for (const char* name : {"step", "exp_avg", "exp_avg_sq"}) all.push_back(own->get(name));
      }
    }
    return all;
  }
  std::vector<Tensor> copies() const {
    std::vector<Tensor> all;
    for (const Tensor& tensor : tensors()) all.push_back(tensor.detach().clone());
    return all;
  }

  Net net;
  O optimizer;
  Amped<Net> amped;
};

/// Calls of an iteration through graphed(), with a stand-in for a graph: a capture runs the
/// function and undoes what it has done to tensors; a replay runs it again on the capture's inputs.
template <class O = optim::FusedAdam>
class ThroughGraph : public Iterated<O> {
 public:
  using Iteration = std::function<Tensor(const Tensor&, const Tensor&)>;

  explicit ThroughGraph(OptLevel level, int64_t max_graphs = 8, bool enabled = true)
      : Iterated<O>(level, enabled),
        function([this](const Tensor& data, const Tensor& target) {
          return this->iteration(data, target);
        }),
        run_([this](const Tensor& data, const Tensor& target) { return call(data, target); },
             {at::kCPU, [this] { return std::make_unique<StandIn>(*this); }}, max_graphs) {}
  ThroughGraph(const ThroughGraph&) = delete;
  ThroughGraph& operator=(const ThroughGraph&) = delete;

  Tensor operator()(const Tensor& data, const Tensor& target) { return run_(data, target); }

  Iteration function;
  bool is_captured = false, fails_at_end = false;
  int calls = 0, captures = 0;

 private:
  class StandIn : public detail::DeviceGraph {
   public:
    explicit StandIn(ThroughGraph& owner) : owner_(owner) {}
    void begin_capture() override {
      owner_.is_captured = true;
      before_ = owner_.copies();
      scale_ = scaler().state();
    }
    void end_capture() override {
      owner_.is_captured = false;
      const at::NoGradGuard no_grad;
      const auto now = owner_.tensors();
      for (size_t i = 0; i < now.size(); ++i) now[i].variable_data().copy_(before_[i]);
      scaler().load_state(scale_);
      std::tie(inputs_, result_) = std::pair(owner_.inputs_, owner_.result_);
      TORCH_CHECK(!owner_.fails_at_end, "no end");
    }
    void replay() override {
      for (const Tensor& param : owner_.net->parameters()) param.mutable_grad() = Tensor();
      result_.copy_(owner_.function(inputs_[0], inputs_[1]));
    }

   private:
    LossScaler& scaler() { return owner_.amped.model.amp()->loss_scaler(); }

    ThroughGraph& owner_;
    std::vector<Tensor> before_, inputs_;
    Tensor result_;
    ScaleState scale_;
  };

  Tensor call(const Tensor& data, const Tensor& target) {
    ++calls;
    captures += is_captured;
    inputs_ = {data, target};
    return result_ = function(data, target);
  }

  std::vector<Tensor> inputs_;
  Tensor result_;
  detail::Graphed<std::function<Tensor(const Tensor&, const Tensor&)>> run_;
};

/// One through graphed(), and one that is called as it is.
struct BothWays {
  explicit BothWays(OptLevel level) : graphed(level), eager(level) {}

  void calls(int count) {
    for (int i = 0; i < count; ++i) {
      const Batch batch = make_batch(at::kCPU, static_cast<unsigned>(i));
      const Tensor mine = graphed(batch.data, batch.target).clone();
      EXPECT_TRUE(mine.equal(eager.iteration(batch.data, batch.target))) << "call " << i;
    }
  }
  template <class Change>
  void change(const Change& change) {
    change(static_cast<Iterated<>&>(graphed));
    change(eager);
  }
  void expect_equal() const {
    const auto mine = graphed.copies(), expected = eager.copies();
    ASSERT_EQ(mine.size(), expected.size());
    for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(mine[i].equal(expected[i])) << i;
  }

  ThroughGraph<> graphed;
  Iterated<> eager;
};

class GraphedTest : public testing::TestWithParam<OptLevel> {};

INSTANTIATE_TEST_SUITE_P(At, GraphedTest, testing::Values(OptLevel::O0, OptLevel::O2, OptLevel::O5),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(GraphedTest, AnIterationIsTheEagerOne) {
  BothWays pair(GetParam());
  pair.calls(10);
  pair.expect_equal();
  EXPECT_EQ(pair.graphed.calls, 4);
  EXPECT_EQ(pair.graphed.captures, 1);
}

TEST_P(GraphedTest, LearningRatesAreFollowed) {
  BothWays pair(GetParam());
  for (const double lr : {0.01, 0.02, 0.03, 0.04, 0.05, 0.06}) {
    pair.change([&](Iterated<>& each) { each.optimizer.param_groups()[0].options().set_lr(lr); });
    pair.calls(1);
  }
  pair.expect_equal();
  EXPECT_EQ(pair.graphed.captures, 1);
}

TEST_P(GraphedTest, WeightsWrittenBetweenCallsCount) {
  BothWays pair(GetParam());
  pair.calls(6);
  pair.change([](Iterated<>& each) {
    const at::NoGradGuard no_grad;
    for (Tensor& param : each.net->parameters()) param.mul_(0.5);
  });
  pair.calls(6);
  pair.expect_equal();
  EXPECT_EQ(pair.graphed.captures, 1);
}

TEST_P(GraphedTest, AfterAChangeTheCallAfterTheNextIsCaptured) {
  const std::vector<std::function<void(Iterated<>&)>> changes{
      [](Iterated<>& each) {
        auto& options = each.optimizer.param_groups()[0].options();
        static_cast<optim::FusedAdamOptions&>(options).weight_decay(0.5);
      },
      [](Iterated<>& each) { each.net->first->weight.set_requires_grad(false); },
      [](Iterated<>& each) { each.optimizer.param_groups()[0].params().pop_back(); },
      [](Iterated<>& each) { each.optimizer.state().clear(); }};
  for (const auto& change : changes) {
    BothWays pair(GetParam());
    pair.calls(6);
    pair.change(change);
    pair.calls(6);
    pair.expect_equal();
    EXPECT_EQ(pair.graphed.captures, 2);
  }
}

TEST_P(GraphedTest, ACaptureThatFailsIsUndone) {
  BothWays pair(GetParam());
  pair.graphed.function = [&](const Tensor& data, const Tensor& target) {
    const Tensor loss = pair.graphed.iteration(data, target);
    TORCH_CHECK(!pair.graphed.is_captured, "no capture");
    return loss;
  };
  pair.calls(3);
  const Batch batch = make_batch(at::kCPU);
  EXPECT_EQ(message_of([&] { pair.graphed(batch.data, batch.target); }), "no capture");
  pair.calls(5);
  pair.expect_equal();
  EXPECT_EQ(pair.graphed.captures, 1);
}

TEST_P(GraphedTest, GradsAreAsBeforeACaptureThatFailsAtItsEnd) {
  ThroughGraph<> training(GetParam());
  const Batch batch = make_batch(at::kCPU);
  for (int i = 0; i < 3; ++i) training(batch.data, batch.target);
  std::vector<Tensor> grads;
  for (const Tensor& param : training.net->parameters()) grads.push_back(param.grad());
  training.fails_at_end = true;
  EXPECT_EQ(message_of([&] { training(batch.data, batch.target); }), "no end");
  size_t i = 0;
  for (const Tensor& param : training.net->parameters()) {
    EXPECT_TRUE(param.grad().is_same(grads[i++]));
  }
}

TEST(Graphed, OtherSizesTakeAnotherGraphUpToANumber) {
  std::vector<std::string> heard;
  const LogSink before =
      set_log_sink([&](LogLevel, const std::string& text) { heard.push_back(text); });
  ThroughGraph<> training(OptLevel::O2, /*max_graphs=*/2);
  const Batch batch = make_batch(at::kCPU);
  for (int i = 0; i < 18; ++i) {
    const int64_t rows = 8 + i % 3;
    training(batch.data.slice(0, 0, rows), batch.target.slice(0, 0, rows));
  }
  set_log_sink(before);
  EXPECT_EQ(training.captures, 2);
  EXPECT_EQ(heard,
            std::vector<std::string>{
                "graphed: expected arguments of at most 2 forms (sizes, dtypes and devices), "
                "got another; such calls run without a graph. Give graphed a larger max_graphs, "
                "or pad the inputs"});
}

TEST(Graphed, WhatChangesBeforeEachCallEndsTheCaptures) {
  std::vector<std::string> heard;
  const LogSink before =
      set_log_sink([&](LogLevel, const std::string& text) { heard.push_back(text); });
  BothWays pair(OptLevel::O2);
  for (int i = 0; i < 14; ++i) {
    pair.change([&](Iterated<>& each) {
      auto& options = each.optimizer.param_groups()[0].options();
      static_cast<optim::FusedAdamOptions&>(options).weight_decay(0.01 * i);
    });
    pair.calls(1);
  }
  set_log_sink(before);
  pair.expect_equal();
  EXPECT_EQ(pair.graphed.captures, 3);
  EXPECT_EQ(heard,
            (std::vector<std::string>{
                "graphed: captured again after a change of options, parameters or states of an "
                "optimizer, or grads outside of it",
                "graphed: expected options, parameters or states of an optimizer, or grads outside "
                "of it to stay, got changes before 3 calls in a row; calls run without a graph. Of "
                "the options, learning rates alone may change"}));
}

/// The fourth call and later ones throw, and change nothing.
template <class O>
void expect_refused(ThroughGraph<O>& training, const std::string& text) {
  const Batch batch = make_batch(at::kCPU);
  for (int i = 0; i < 3; ++i) training(batch.data, batch.target);
  const auto before = training.copies();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of([&] { training(batch.data, batch.target); }), text);
  }
  const auto after = training.copies();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(after[i]));
}

TEST(Graphed, RefusesOptimizersThatWait) {
  ThroughGraph<torch::optim::SGD> training(OptLevel::O2);
  expect_refused(training,
                 "graphed: expected optimizers whose steps never wait for the device, got one of "
                 "LibTorch's or the program's; take one of amp::optim");
}

TEST(Graphed, RefusesAFunctionThatStepsSchedulers) {
  ThroughGraph<> training(OptLevel::O2);
  training.function = [&](const Tensor& data, const Tensor& target) {
    auto& options = training.optimizer.param_groups()[0].options();
    options.set_lr(options.get_lr() / 2);
    return training.iteration(data, target);
  };
  expect_refused(training,
                 "graphed: expected a function that leaves learning rates alone, got one that "
                 "changes one, which replays would not; step schedulers after the call");
}

TEST(Graphed, RefusesAFunctionThatStepsNothing) {
  ThroughGraph<> training(OptLevel::O2);
  training.function = [&](const Tensor& data, const Tensor&) { return training.amped.model(data); };
  expect_refused(training, std::string(kNoWholeIteration) + "one that steps no optimizer");
}

TEST(Graphed, RefusesOptimizersThatStepInSomeCalls) {
  ThroughGraph<> training(OptLevel::O2);
  Iterated<> other(OptLevel::O2);
  training.function = [&](const Tensor& data, const Tensor& target) {
    return training.calls % 2 == 0 ? other.iteration(data, target)
                                   : training.iteration(data, target);
  };
  const Batch batch = make_batch(at::kCPU);
  for (int i = 0; i < 3; ++i) training(batch.data, batch.target);
  EXPECT_EQ(message_of([&] { training(batch.data, batch.target); }),
            "graphed: expected a function that steps the same optimizers in each call with "
            "arguments of one form, got one that does not; give it an argument that says which");
  for (int i = 0; i < 3; ++i) training(batch.data, batch.target);
  EXPECT_EQ(training.calls, 7);
}

TEST(Graphed, RefusesInputsThatRequireGrads) {
  ThroughGraph<> training(OptLevel::O2);
  const Batch batch = make_batch(at::kCPU);
  const Tensor data = batch.data.clone().requires_grad_();
  for (int i = 0; i < 3; ++i) training(data, batch.target);
  EXPECT_EQ(message_of([&] { training(data, batch.target); }),
            "graphed: expected arguments that require no grad, got one that does, which replays "
            "would not reach; compute it in the function, or pass it as x.detach()");
}

TEST(Graphed, RefusesAStepByGradsOfAnEarlierCallOnce) {
  BothWays pair(OptLevel::O2);
  const auto step_first = [](Iterated<>& each, const Tensor& data, const Tensor& target) {
    each.amped.optimizer.step();
    each.amped.optimizer.zero_grad();
    const Tensor loss = loss_of(each.amped.model(data), target);
    scale_loss(loss, each.amped.optimizer).backward();
    return loss.detach();
  };
  pair.graphed.function = [&](const Tensor& data, const Tensor& target) {
    return step_first(pair.graphed, data, target);
  };
  const Batch batch = make_batch(at::kCPU);
  for (int i = 0; i < 3; ++i) pair.graphed(batch.data, batch.target);
  EXPECT_EQ(message_of([&] { pair.graphed(batch.data, batch.target); }),
            std::string(kNoWholeIteration) +
                "a step by a grad of an earlier call; give one call all micro-batches of its step, "
                "and let zero_grad() drop the grads, as it does by default");
  for (int i = 0; i < 3; ++i) pair.graphed(batch.data, batch.target);
  for (int i = 0; i < 6; ++i) step_first(pair.eager, batch.data, batch.target);
  pair.expect_equal();
}

TEST(Graphed, WithoutMixedPrecisionItCallsTheFunction) {
  ThroughGraph<> training(OptLevel::O2, 8, /*enabled=*/false);
  const Batch batch = make_batch(at::kCPU);
  for (int i = 0; i < 6; ++i) training(batch.data, batch.target);
  EXPECT_EQ(training.calls, 6);
  EXPECT_EQ(training.captures, 0);
}

TEST(Graphed, OnACpuItCallsTheFunction) {
  Iterated<torch::optim::SGD> trained(OptLevel::O2);
  int calls = 0;
  const auto function = [&](const Tensor& data, const Tensor& target) {
    ++calls;
    trained.iteration(data, target);
  };
  detail::Graphed<decltype(function)> run(function, {at::kCUDA, nullptr}, 1);
  for (int i = 0; i < 8; ++i) {
    const Batch batch = make_batch(at::kCPU);
    run(batch.data.slice(0, 0, 8 + i), batch.target.slice(0, 0, 8 + i));
  }
  EXPECT_EQ(calls, 8);
}

TEST(Graphed, RefusesANumberOfGraphsBelowOne) {
  const auto function = [](const Tensor& data) { return data; };
  detail::Graphed<decltype(function)> run(function, {at::kCPU, nullptr}, 0);
  EXPECT_EQ(message_of([&] { run(at::Tensor()); }),
            "graphed: expected max_graphs to be at least 1, got 0");
}

}  // namespace
}  // namespace torchamp

// Handles and optimizers that a program moves, or destroys too early.
#include <ATen/Context.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torchamp/averaged_model.h>
#include <torchamp/build_info.h>
#include <torchamp/clip.h>
#include <torchamp/float32_params.h>
#include <torchamp/functions.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/logging.h>
#include <torchamp/ops.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/sgd.h>
#include <torchamp/serialize.h>
#include <torchamp/telemetry.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

constexpr const char* kDestroyed =
    "Optimizer: expected the optimizer that initialize was given to hold its parameters, but it "
    "was destroyed or moved; keep it where it is, or let initialize own it: "
    "initialize(model, std::move(optimizer), opt_level)";

class LifetimesTest : public LevelTest {
 protected:
  Amped<Net> make_amped() const {
    Net net = make_net(device());
    torch::optim::Adam adam(net->parameters(), 1e-2);
    return initialize(net, std::move(adam), quiet(level()));
  }
  float loss_after_a_step(Amped<Net>& amped) const {
    const Batch batch = make_batch(device());
    const auto loss = [&] { return loss_of(amped.model(batch.data), batch.target); };
    amped.optimizer.zero_grad();
    scale_loss(loss(), amped.optimizer).backward();
    EXPECT_TRUE(amped.optimizer.step());
    return loss().item().toFloat();
  }
};

TEST_P(LifetimesTest, AFunctionMayReturnWhatOwnsItsOptimizer) {
  Training training(device(), quiet(level()));
  auto amped = make_amped();
  const float first = loss_after_a_step(amped);
  EXPECT_LT(loss_after_a_step(amped), first);
}

TEST_P(LifetimesTest, AnOptimizerMayBeGivenAsAPointer) {
  Net net = make_net(device());
  std::unique_ptr<torch::optim::Optimizer> sgd =
      std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
  auto amped = initialize(net, std::move(sgd), quiet(level()));
  const float first = loss_after_a_step(amped);
  EXPECT_LT(loss_after_a_step(amped), first);
}

TEST_P(LifetimesTest, WhatWasMovedFromIsAnotherHandle) {
  auto amped = make_amped();
  auto moved = std::move(amped);
  const float first = loss_after_a_step(moved);
  EXPECT_LT(loss_after_a_step(amped), first);  // NOLINT(bugprone-use-after-move)
}

TEST_P(LifetimesTest, AMovedOptimizerIsRefused) {
  Training training(device(), quiet(level()));
  const torch::optim::SGD elsewhere(std::move(training.own));
  const Tensor loss = training.loss();
  EXPECT_EQ(message_of([&] { scale_loss(loss, training.optimizer()).backward(); }), kDestroyed);
  EXPECT_EQ(message_of([&] { training.optimizer().step(); }), kDestroyed);
}

template <class O>
class Destroyed {
 public:
  Destroyed(at::Device device, const Options& options, bool holds_masters)
      : net_(make_net(device)), data_(make_batch(device).data) {
    optimizer_.emplace(net_->parameters());
    amped_.emplace(initialize(net_, *optimizer_, options));
    if (holds_masters) masters_ = amped_->optimizer.master_params();
    optimizer_.reset();
  }
  void expect_refusals() {
    Optimizer& optimizer = amped_->optimizer;
    const Tensor loss = amped_->model(data_).sum();
    EXPECT_EQ(message_of([&] { scale_loss(loss, optimizer).backward(); }), kDestroyed);
    EXPECT_EQ(message_of([&] { optimizer.step(); }), kDestroyed);
    EXPECT_EQ(message_of([&] { optimizer.zero_grad(); }), kDestroyed);
    EXPECT_EQ(message_of([&] { optimizer.master_params(); }), kDestroyed);
    EXPECT_EQ(message_of([&] { optimizer.wrapped(); }), kDestroyed);
    EXPECT_EQ(message_of([&] { save(*amped_, "/dev/null"); }), kDestroyed);
    release(*amped_);
    EXPECT_EQ(message_of([&] { optimizer.wrapped(); }), kDestroyed);
  }

 private:
  Net net_;
  Tensor data_;
  std::optional<O> optimizer_;
  std::optional<Amped<Net>> amped_;
  std::vector<Tensor> masters_;
};

template <class O>
struct Kind {
  using type = O;
};
struct OwnSgd : torch::optim::SGD {
  explicit OwnSgd(const std::vector<Tensor>& params) : SGD(params, 0.1) {}
};

TEST_P(LifetimesTest, ADestroyedOptimizerIsRefused) {
  for (const bool holds_masters : {false, true}) {
    const auto expect_refusals = [&](auto kind) {
      Destroyed<typename decltype(kind)::type>(device(), quiet(level()), holds_masters)
          .expect_refusals();
    };
    expect_refusals(Kind<OwnSgd>());
    expect_refusals(Kind<torch::optim::Adam>());
    expect_refusals(Kind<torch::optim::AdamW>());
    expect_refusals(Kind<torch::optim::Adagrad>());
    expect_refusals(Kind<torch::optim::RMSprop>());
    expect_refusals(Kind<torch::optim::LBFGS>());
    expect_refusals(Kind<optim::FusedAdam>());
    expect_refusals(Kind<optim::FusedSGD>());
  }
}

TEST_P(LifetimesTest, AnOptimizersDefaultsStayWhatTheyAre) {
  Net net = make_net(device());
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.5).eps(0.25));
  auto first = initialize(net, adam, quiet(level()));
  release(first);
  auto amped = initialize(net, adam, quiet(level()));
  EXPECT_EQ(static_cast<torch::optim::AdamOptions&>(adam.defaults()).eps(), 0.25);
  const Tensor added = at::ones({2}, device()).requires_grad_();
  adam.add_param_group(torch::optim::OptimizerParamGroup({added}));
  EXPECT_EQ(static_cast<torch::optim::AdamOptions&>(adam.param_groups()[1].options()).eps(), 0.25);
}

TEST_P(LifetimesTest, AModuleByReferenceMayBeDestroyedFirst) {
  alignas(NetImpl) unsigned char memory[sizeof(NetImpl)];
  auto* const net = new (memory) NetImpl;
  net->to(device());
  {
    auto amped = initialize(*net, std::make_unique<torch::optim::SGD>(net->parameters(), 0.1),
                            quiet(level()));
    net->~NetImpl();
    std::iota(memory, memory + sizeof(memory), 1);
  }
}

/// Three models that live in statics, in variables of a thread, on the heap for ever or in a scope,
/// made in this thread or another, and the last of them destroyed in another.
[[noreturn]] void end_process(unsigned seed, const std::function<Amped<Net>()>& make) {
  using Models = std::vector<std::unique_ptr<Amped<Net>>>;
  static Models statics;
  static Models& forever = *new Models;  // a static, by which LeakSanitizer finds it
  std::mt19937 random(seed);
  int casting = 0;  // here
  const auto put = [&](bool here) {
    thread_local Models locals;
    auto amped = std::make_unique<Amped<Net>>(make());
    const auto place = random() % 5;
    if (place == 0) statics.push_back(std::move(amped));
    if (place == 1) locals.push_back(std::move(amped));
    if (place == 2) forever.push_back(std::move(amped));
    if (place == 3) std::thread([handed = std::move(amped)] {}).join();
    casting += here && place < 3 ? 1 : 0;
  };
  for (int i = 0; i < 3; ++i) {
    random() % 2 == 0 ? put(true) : std::thread(put, false).join();
    const bool casts = casting > 0;
    const Tensor matrix = at::ones({2, 2});
    if (!casts && at::mm(matrix, matrix).scalar_type() != at::kFloat) std::_Exit(1);
  }
  std::exit(0);
}

TEST_P(LifetimesTest, AProcessEndsWellWhereverAModelLives) {
  if (!device().is_cpu()) GTEST_SKIP() << "a forked process has no CUDA device";
  for (unsigned seed = 0; seed < 8; ++seed) {
    EXPECT_EXIT(end_process(seed, [this] { return make_amped(); }), testing::ExitedWithCode(0), "")
        << "seed " << seed;
  }
}

/// Calls the public API, but for what torch itself cannot do as a process ends: draw random
/// numbers, record ops, normalize batches, backwards, and a save or autocast that is not the
/// `first`. `net` is another one.
void use_all(Amped<Net>& amped, Net& net, bool first) {
  const Batch batch = make_batch(at::kCPU);
  const auto forward = [](NetImpl& own, const at::Tensor& x) { return own.last(own.first(x)); };
  const auto train = [&](Amped<Net>& own) {
    (void)own.model.call(forward, batch.data);
    for (const at::Tensor& param : own.model->parameters()) {
      param.mutable_grad() = at::ones_like(param);
    }
    clip_grad_norm_(own.optimizer, 1.0);
    own.optimizer.step();
    own.optimizer.zero_grad();
  };
  train(amped);
  AveragedModel average(amped.model, net);
  average.update_parameters(amped.model);
  {
    const Float32Params lent(amped);
    const at::NoGradGuard no_grad;
    amped.model->last->bias.add_(1);
  }
  (void)amped.optimizer.master_params();
  (void)telemetry(amped.optimizer);
  if (first) {
    std::ostringstream file;
    torch::save(amped.model, file);
    torch::serialize::OutputArchive archive;
    save(*amped.model.amp(), archive);
    archive.save_to(file);
  }

  optim::FusedSGD sgd(net->parameters(), optim::FusedSGDOptions(0.1));
  auto fused = initialize(net, sgd, quiet(OptLevel::O5));
  train(fused);
  release(fused);

  if (first) {
    const autocast casts(at::kCPU, at::kBFloat16);
  }
  GradScaler scaler;
  (void)scaler.scale(forward(*net, batch.data));
  (void)half_function([](const at::Tensor& x) { return x; })(batch.data);
  (void)ops::l2norm(net->parameters());
  std::ostringstream text;
  text << build_info().version << backend(at::kCPU).name << *amped.model.amp();
  log_message(LogLevel::kInfo, "the program ends");
}

/// Made before main, and so destroyed after all that the first initialize makes.
struct Trainer {
  /// What torch's products read on some CPUs is destroyed after this, too.
  Trainer() { at::globalContext(); }
  ~Trainer() {
    if (!amped) return;
    try {
      use_all(*amped, *net, is_first);
    } catch (const std::exception& error) {
      std::cerr << error.what();
      std::abort();
    }
  }
  bool is_first = true;
  std::optional<Amped<Net>> amped;
  std::optional<Net> net;
};
Trainer of_the_program;

[[noreturn]] void end_process_with_a_global(const std::function<Amped<Net>()>& make, bool used) {
  of_the_program.amped.emplace(make());
  of_the_program.net.emplace(make_net(at::kCPU));
  if (used) {
    use_all(*of_the_program.amped, *of_the_program.net, true);
    of_the_program.is_first = false;
  }
  std::exit(0);
}

TEST_P(LifetimesTest, AGlobalMayUseAllAsTheProcessEnds) {
  if (!device().is_cpu()) GTEST_SKIP() << "a forked process has no CUDA device";
  const std::string style = GTEST_FLAG_GET(death_test_style);
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process that has initialized nothing
  for (const bool used : {false, true}) {
    EXPECT_EXIT(end_process_with_a_global([this] { return make_amped(); }, used),
                testing::ExitedWithCode(0), "");
  }
  GTEST_FLAG_SET(death_test_style, style);
}

TORCHAMP_AT_LEVELS(LifetimesTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O5);

class MastersLifetimeTest : public LevelTest {};

TEST_P(MastersLifetimeTest, ADestroyedOptimizerBindsNoOther) {
  Net net = make_net(device());
  std::optional<torch::optim::SGD> sgd(std::in_place, net->parameters(), 0.1);
  optim::FusedAdam adam(net->parameters());
  auto of_sgd = initialize(net, *sgd, quiet(level()));
  sgd.reset();
  EXPECT_EQ(message_of([&] { of_sgd.optimizer.step(); }), kDestroyed);
  net->to(at::kFloat);
  auto of_adam = initialize(net, adam, quiet(level()));
  EXPECT_TRUE(of_adam.model(make_batch(device()).data).defined());
}

TORCHAMP_AT_LEVELS(MastersLifetimeTest, OptLevel::O2, OptLevel::O5);

}  // namespace
}  // namespace torchamp

// Two ranks, each a thread: an overflow on one skips the step of both.
#include <ATen/ops/maximum.h>
#include <torchamp/agreement.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/optim/adam.h>
#include <torchamp/telemetry.h>

#if __has_include(<torch/csrc/distributed/c10d/Backend.hpp>)
#include <torchamp/distributed.h>
#define HAS_C10D 1
#endif

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

constexpr int64_t kRanks = 2;

/// An all-reduce among threads.
class Meeting {
 public:
  void all_reduce_max(const Tensor& tensor) {
    std::unique_lock lock(mutex_);
    const int64_t here = round_;
    if (++arrived_ == 1) {
      first_ = tensor;
      changed_.wait(lock, [&] { return round_ != here; });
      return;
    }
    const Tensor largest = at::maximum(first_, tensor);
    first_.copy_(largest);
    tensor.copy_(largest);
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  }

  Agreement of(int64_t rank) {
    return {[this](const Tensor& tensor) { all_reduce_max(tensor); }, rank, kRanks};
  }
  int64_t rounds() const { return round_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Tensor first_;
  int64_t arrived_ = 0, round_ = 0;
};

void on_all_ranks(const std::function<void(int64_t)>& body) {
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

Options options_of(Meeting& meeting, int64_t rank) {
  return Options("O2").verbosity(0).process_group(meeting.of(rank));
}

/// One rank after the other, as all draw their weights from one generator.
template <class Make>
auto in_turn(Make make) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  return make();
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

template <class Trained>
void expect_both_skip() {
  Meeting meeting;
  std::array<std::vector<Tensor>, kRanks> masters;
  on_all_ranks([&](int64_t rank) {
    const auto made =
        in_turn([&] { return std::make_unique<Trained>(at::kCPU, options_of(meeting, rank)); });
    Trained& training = *made;
    for (int64_t step = 0; step < 4; ++step) {
      training.optimizer().zero_grad();
      const bool overflows = step == 2 && rank == 1;
      if (overflows) {
        training.overflow();
      } else {
        training.backward();
      }
      EXPECT_EQ(training.optimizer().step(), step != 2) << "rank " << rank << ", step " << step;
    }
    EXPECT_EQ(training.scaler().loss_scale(), 32768);
    EXPECT_EQ(telemetry(training.optimizer()).skipped_steps, 1);
    masters[rank] = clones(training.optimizer().master_params());
  });
  expect_same(masters[0], masters[1]);
  EXPECT_EQ(meeting.rounds(), 4 + 1) << "one a backward, and one that compares scales";
}

TEST(AgreementTest, AnOverflowOnOneRankSkipsTheStepOfBoth) {
  expect_both_skip<Training>();
  expect_both_skip<TrainingOf<optim::FusedAdamW>>();
}

TEST(AgreementTest, BothRanksRefuseOtherScales) {
  Meeting meeting;
  on_all_ranks([&](int64_t rank) {
    Training training(at::kCPU, options_of(meeting, rank));
    training.scaler().load_state({rank == 0 ? 256.0 : 64.0, 0});
    const Tensor loss = training.loss();
    const auto message = message_of([&] { scale_loss(loss, training.optimizer()).backward(); });
    EXPECT_EQ(message,
              "scale_loss: expected the ranks of process_group to have one loss scale, got 64 on "
              "rank 1 and 256 on rank 0; load the same state on every rank");
    training.scaler().load_state({64.0, 0});
    training.step();
  });
}

TEST(AgreementTest, AFixedScaleSkipsNothing) {
  Meeting meeting;
  Training training(at::kCPU, options_of(meeting, 0).loss_scale(128.0));
  training.step();
  EXPECT_EQ(meeting.rounds(), 0);
}

TEST(AgreementTest, GradScalersSkipTogether) {
  Meeting meeting;
  on_all_ranks([&](int64_t rank) {
    Net net = make_net(at::kCPU, 1);
    const Batch batch = make_batch(at::kCPU);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    GradScaler scaler;
    scaler.process_group(meeting.of(rank));
    for (int64_t step = 0; step < 3; ++step) {
      sgd.zero_grad();
      scaler.scale(loss_of(net(batch.data), batch.target)).backward();
      if (step == 1 && rank == 1) net->last->bias.grad().fill_(INFINITY);
      EXPECT_EQ(scaler.step(sgd), step != 1) << "rank " << rank << ", step " << step;
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), 32768);
  });
  EXPECT_EQ(meeting.rounds(), 3 + 1);
}

TEST(AgreementTest, ARankIsBelowTheSize) {
  const auto nothing = [](const Tensor&) {};
  EXPECT_TRUE(contains(message_of([&] {
                         Options().process_group({nothing, 2, 2});
                       }),
                       "initialize: expected the rank of process_group to be below its size, 2, "
                       "got 2"));
  EXPECT_TRUE(contains(message_of([&] {
                         GradScaler().process_group({nothing, -1, 2});
                       }),
                       "GradScaler: expected the rank of process_group to be below its size, 2, "
                       "got -1"));
}

#ifdef HAS_C10D

/// A backend of c10d whose ranks are threads.
class Threads : public c10d::Backend {
 public:
  Threads(Meeting& meeting, int rank) : Backend(rank, kRanks), meeting_(meeting) {}
  const std::string getBackendName() const override { return "threads"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    EXPECT_EQ(options.reduceOp, c10d::ReduceOp::MAX);
    meeting_.all_reduce_max(tensors.at(0));
    return c10::make_intrusive<Done>();
  }

 private:
  struct Done : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };
  Meeting& meeting_;
};

TEST(AgreementTest, TakesABackendOfC10d) {
  Meeting meeting;
  on_all_ranks([&](int64_t rank) {
    const auto backend = c10::make_intrusive<Threads>(meeting, static_cast<int>(rank));
    Training training(at::kCPU, Options("O2").verbosity(0).process_group(agreement_of(backend)));
    if (rank == 1) {
      training.overflow();
    } else {
      scale_loss(training.loss(), training.optimizer()).backward();
    }
    EXPECT_FALSE(training.optimizer().step());
  });
  EXPECT_EQ(message_of([] { agreement_of({}); }),
            "agreement_of: expected a backend, got a null pointer");
}

#endif

}  // namespace
}  // namespace torchamp

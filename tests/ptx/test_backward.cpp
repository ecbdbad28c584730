// The last pass over a backward's grads, which finalizes it, from plan to kernel.
#include <chrono>
#include <future>
#include <thread>

#include "cases.h"
#include "checks.h"
#include "cuda/arguments.h"
#include "cuda/launch_table.h"
#include "driver.h"
#include "queues.h"

namespace kernel_tests {
namespace {

using torchamp::InvScale;
using torchamp::ScaleUpdate;
using torchamp::uint32;
namespace cuda = torchamp::cuda;

const torchamp::ScaleUpdate::Rule kRule{2.0f, 0.5f, 3, 1.0f, 64.0f};
constexpr float kLossScale = 8.0f;

/// Zeros of both signs.
void zero(TensorList& list) {
  for (Tensor& tensor : list) {
    for (int64 i = 0; i < tensor.count(); ++i) tensor.set(i, i % 2 == 0 ? 0.0f : -0.0f);
  }
}

/// A backward's grads and results.
class Backward {
 public:
  /// Every second grad has a master grad, or none has.
  explicit Backward(std::vector<TensorList> lists, bool has_masters = true)
      : lists_(std::move(lists)),
        flags_(lists_[0].size()),
        per_tensor_(2 * lists_[0].size(), 7),
        plan_(plan_of({&lists_[0], &lists_[1]})) {
    for (std::size_t t = 0; t < lists_[0].size(); ++t) {
      if (!has_masters || t % 2 == 0) plan_.data[2 * t + 1] = nullptr;
      if (has_masters && t % 2 != 0) continue;
      checked_.push_back(t);
    }
  }

  torchamp::Flags flags() { return flags_.flags(); }

  torchamp::Finalization end() {
    return {flags(),
            static_cast<int32>(per_tensor_.size()),
            &scale_.loss_scale,
            has_found_before_ ? &found_before_ : nullptr,
            is_loss_known_ ? &loss_ : nullptr,
            &found_inf_,
            &inv_scale_,
            per_tensor_.data(),
            adds_,
            {&scale_.loss_scale, &scale_.growth_tracker, kRule},
            is_heard_ ? &report_ : nullptr,
            wants_norm_ ? &norm_ : nullptr,
            &ticket_};
  }

  void run(const cuda::Queue& queue = kQueue) {
    std::vector<char> workspace(cuda::finish_backward_workspace(plan_));
    cuda::finish_backward(queue, plan_, {&scale_.loss_scale, /*is_loss_scale=*/true}, false,
                          flags(), end(), reinterpret_cast<float*>(workspace.data()));
  }

  void expect(bool found) const { expect(found, found ? torchamp::kOverflowed : torchamp::kClean); }

  void expect(bool found, float outcome) const {
    const ScaleUpdate::State moved = torchamp::updated({kLossScale, 1}, found, kRule);
    EXPECT_EQ(found_inf_, found ? 1.0f : 0.0f);
    EXPECT_EQ(inv_scale_, 1.0f / kLossScale) << "of the scale before it moved";
    EXPECT_EQ(scale_.loss_scale, moved.loss_scale);
    EXPECT_EQ(scale_.growth_tracker, moved.growth_tracker);
    EXPECT_EQ(ticket_, 0u);
    EXPECT_EQ(report_.outcome, torchamp::packed_outcome(outcome, moved.loss_scale));
    EXPECT_EQ(flags_.found_inf, 0.0f);
    EXPECT_EQ(flags_.per_tensor, std::vector<uint8>(flags_.per_tensor.size(), 0));
  }

  double norm_of_checked() const {
    double sum = 0.0;
    for (const std::size_t t : checked_) {
      for (int64 i = 0; i < lists_[0][t].count(); ++i) sum += std::pow(lists_[0][t][i], 2.0);
    }
    return std::sqrt(sum);
  }

  std::vector<TensorList> lists_;
  std::vector<std::size_t> checked_;
  Report flags_;
  std::vector<uint8> per_tensor_;
  Plan plan_;
  ScaleUpdate::State scale_{kLossScale, 1};
  float loss_ = 1.0f, found_before_ = 0.0f, found_inf_ = 5.0f, inv_scale_ = 5.0f, norm_ = 5.0f;
  bool has_found_before_ = false, adds_ = false, wants_norm_ = false, is_heard_ = true;
  bool is_loss_known_ = true;
  uint32 ticket_ = 0;
  torchamp::Report report_{0, -1, {-1, -1, -1}};
};

class EndOfBackward : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { cuda::use_driver(driver()); }
  static std::vector<TensorList> make() { return GetParam() ? tiny_cases(2) : all_cases(2); }
};

void expect_unscaled(std::vector<TensorList> lists, const cuda::Queue& queue, const char* kernel) {
  Backward backward(std::move(lists));
  for (Tensor& master : backward.lists_[1]) master.set(0, -7.0f);
  auto expected = copy_of(backward.lists_[1]);
  for (std::size_t t = 1; t < expected.size(); t += 2) {
    for (int64 i = 0; i < expected[t].count(); ++i) {
      expected[t].set(i, torchamp::unscaled(backward.lists_[0][t][i], 1.0f / kLossScale));
    }
  }
  backward.wants_norm_ = true;
  backward.run(queue);
  backward.expect(false);
  EXPECT_EQ(last_launched(), kernel);
  expect_same(backward.lists_[1], expected);
  const double norm = backward.norm_of_checked();
  EXPECT_NEAR(backward.norm_, norm, 1e-5 * norm);
  EXPECT_EQ(backward.per_tensor_, std::vector<uint8>(backward.per_tensor_.size(), 0));
}

/// Each kind of table has kernels of its own.
TEST_P(EndOfBackward, UnscalesWhatHasAMasterGradAndChecksTheRest) {
  expect_unscaled(make(), kQueue, "torchamp_unscale");
  auto lists = make();
  while (!lists[0].empty()) expect_unscaled(take(lists, 100), kQueue, "torchamp_unscale_small");
  lists = make();
  append(lists, tiny_cases(2));
  Tables tables;
  expect_unscaled(std::move(lists), {0, nullptr, &tables}, "torchamp_unscale_resident");
}

TEST_P(EndOfBackward, TellsALossThatIsNotFiniteFromAnOverflow) {
  for (const float loss : {NAN, INFINITY}) {
    Backward backward(make());
    spoil(backward.lists_[0]);
    backward.loss_ = loss;
    backward.run();
    backward.expect(true, torchamp::kLossNotFinite);
  }
  Backward clean(make());
  clean.loss_ = NAN;  // a loss that no grad depends on
  clean.run();
  clean.expect(false);
  Backward unknown(make());
  spoil(unknown.lists_[0]);
  unknown.is_loss_known_ = false;
  unknown.run();
  unknown.expect(true);
}

TEST_P(EndOfBackward, OneThatIsNotFiniteIsAnOverflow) {
  for (const float value : {NAN, -INFINITY}) {
    Backward backward(make());
    zero(backward.lists_[0]);
    backward.lists_[0].back().set(0, value);
    backward.run();
    backward.expect(true);
  }
}

TEST_P(EndOfBackward, BacksOffWhereOneIsNotFinite) {
  Tables tables;
  const auto expect_backoff = [&](std::vector<TensorList> lists, bool wants_norm) {
    Backward backward(std::move(lists));
    spoil(backward.lists_[0]);
    backward.wants_norm_ = wants_norm;
    backward.run({0, nullptr, &tables});
    backward.expect(true);
    for (std::size_t t = 0; t < backward.lists_[0].size(); ++t) {
      EXPECT_EQ(backward.per_tensor_[2 * t], t % 5 == 0 ? 1 : 0) << "tensor " << t;
    }
    const int tensors = static_cast<int>(backward.lists_[0].size());
    EXPECT_EQ(backward.report_.nonfinite, (tensors + 4) / 5);
    for (int i = 0; i < torchamp::kNamedPositions; ++i) {
      EXPECT_EQ(backward.report_.first[i], 10 * i);
    }
  };
  for (const bool wants_norm : {false, true}) {
    auto lists = make();
    expect_backoff(take(lists, 100), wants_norm);
    expect_backoff(make(), wants_norm);
    append(lists, tiny_cases(2));
    expect_backoff(std::move(lists), wants_norm);
  }
}

TEST_P(EndOfBackward, IsThatOfACheckWhereNoneHasAMasterGrad) {
  const auto expect_check = [](std::vector<TensorList> lists, bool is_spoilt,
                               const cuda::Queue& queue, const char* kernel) {
    if (is_spoilt) spoil(lists[0]);
    Backward backward(std::move(lists), /*has_masters=*/false);
    const auto untouched = copy_of(backward.lists_[1]);
    backward.wants_norm_ = !is_spoilt;
    const double norm = is_spoilt ? 5.0 : backward.norm_of_checked();
    backward.run(queue);
    backward.expect(is_spoilt);
    EXPECT_EQ(last_launched(), kernel);
    EXPECT_NEAR(backward.norm_, norm, 1e-5 * norm);
    expect_same(backward.lists_[1], untouched);
  };
  for (const bool is_spoilt : {false, true}) {
    auto lists = make();
    expect_check(take(lists, 100), is_spoilt, kQueue, "torchamp_check_small");
    expect_check(make(), is_spoilt, kQueue, "torchamp_check");
    append(lists, tiny_cases(2));
    Tables tables;
    expect_check(std::move(lists), is_spoilt, {0, nullptr, &tables}, "torchamp_check_resident");
  }
}

TEST_P(EndOfBackward, AddsToWhatWasFoundBefore) {
  Backward backward(make());
  backward.has_found_before_ = backward.adds_ = true;
  backward.found_before_ = 1.0f;
  std::fill(backward.per_tensor_.begin(), backward.per_tensor_.end(), 0);
  backward.per_tensor_[2] = 1;
  backward.run();
  backward.expect(true);
  EXPECT_EQ(backward.per_tensor_[2], 1);
  EXPECT_EQ(backward.per_tensor_[4], 0);
}

TEST_P(EndOfBackward, TheHostSeesNamesOnceItSeesAnOverflow) {
  Backward backward(make());
  spoil(backward.lists_[0]);
  auto device = std::async(std::launch::async, [&] { backward.run(); });
  const auto has_ended = [&] {
    return device.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  while (__atomic_load_n(&backward.report_.outcome, __ATOMIC_ACQUIRE) == 0 && !has_ended()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(backward.report_.first[1], 10);
  device.get();
}

TEST_P(EndOfBackward, WritesNoReportWithoutMemoryForIt) {
  Backward backward(make());
  backward.is_heard_ = false;
  backward.run();
  EXPECT_EQ(backward.report_.outcome, 0u);
  EXPECT_EQ(backward.found_inf_, 0.0f);
}

TEST_P(EndOfBackward, TakesALaunchForAsManyTensorsAsFitATable) {
  Backward backward(make());
  constexpr int kFit = cuda::Launch<cuda::UnscaleArguments>::kCapacity;
  const int tensors = static_cast<int>(backward.lists_[0].size());
  const int before = launches();
  backward.run();
  EXPECT_EQ(launches() - before, (tensors + kFit - 1) / kFit);
}

INSTANTIATE_TEST_SUITE_P(Lists, EndOfBackward, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Tiny" : "Mixed");
});

TEST(EndOfBackwardByItself, IsTheSame) {
  cuda::use_driver(driver());
  Backward backward(all_cases(2));
  raise(backward.flags_, 3);
  cuda::finalize(kQueue, backward.end());
  backward.expect(true);
  EXPECT_EQ(backward.per_tensor_[6], 1);
  EXPECT_EQ(backward.per_tensor_[8], 0);
}

/// Flags are moved sixteen at a time where they are aligned to as many, and several times by a
/// thread.
TEST(EndOfBackwardByItself, MovesTheFlagsOfEveryPosition) {
  cuda::use_driver(driver());
  for (const bool adds : {false, true}) {
    for (const int misaligned : {0, 1}) {
      constexpr int kPositions = 70'005;
      std::vector<uint8> found(kPositions + misaligned), kept(kPositions + misaligned);
      std::vector<uint8> expected(kPositions);
      for (int i = 0; i < kPositions; ++i) {
        found[misaligned + i] = i % 7 == 3;
        kept[misaligned + i] = i % 11 == 5;
        expected[i] = i % 7 == 3 || (adds && i % 11 == 5);
      }
      Backward backward(all_cases(2));
      torchamp::Finalization end = backward.end();
      end.flags.per_tensor = found.data() + misaligned;
      end.per_tensor = kept.data() + misaligned;
      end.positions = kPositions;
      end.adds_per_tensor = adds;
      cuda::finalize(kQueue, end);
      EXPECT_EQ(std::vector<uint8>(kept.begin() + misaligned, kept.end()), expected);
      EXPECT_EQ(found, std::vector<uint8>(found.size(), 0));
    }
  }
}

TEST(EndOfBackwardByItself, IsCleanWithoutGrads) {
  cuda::use_driver(driver());
  Backward backward(all_cases(2));
  cuda::finalize(kQueue, backward.end());
  backward.expect(false);
}

}  // namespace
}  // namespace kernel_tests

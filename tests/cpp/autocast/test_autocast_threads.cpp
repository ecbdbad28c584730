#include <ATen/ThreadLocalState.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "autocast_test.h"

namespace torchamp {
namespace {

using AutocastThreadsTest = AutocastTest;

TEST_P(AutocastThreadsTest, AnotherThreadMayJoin) {
  OpenAutocast opened = open(at::kBFloat16);
  std::vector<at::ScalarType> in_thread;
  std::thread([&] {
    {
      const JoinAutocast joined(opened);
      in_thread.push_back(mm_type());
      const JoinAutocast again(opened);
      in_thread.push_back(mm_type());
    }
    in_thread.push_back(mm_type());
    const State after = state_of(type());
    EXPECT_TRUE(!after.enabled && after.cache_enabled && after.nesting == 0);
  }).join();
  EXPECT_EQ(in_thread, std::vector({at::kBFloat16, at::kBFloat16, at::kFloat}));
}

TEST_P(AutocastThreadsTest, JoinRespectsWhatTheThreadSwitchedOff) {
  OpenAutocast opened = open();
  std::vector<at::ScalarType> in_thread;
  std::thread([&] {
    {
      const autocast off(type(), AutocastOptions().enabled(false));
      const JoinAutocast joined(opened);
      in_thread.push_back(mm_type());
    }
    const disable_casts shield;
    const JoinAutocast joined(opened);
    in_thread.push_back(mm_type());
  }).join();
  EXPECT_EQ(in_thread, std::vector({at::kFloat, at::kFloat}));
}

TEST_P(AutocastThreadsTest, AClosedAutocastCannotBeJoined) {
  OpenAutocast opened = open();
  opened.close();
  std::thread([&] {
    const JoinAutocast joined(opened);
    EXPECT_EQ(mm_type(), at::kFloat);
  }).join();
}

/// Whichever op comes first, of one kernel or of several, and whatever guards it.
TEST_P(AutocastThreadsTest, NothingIsCastAfterAnotherThreadHasClosed) {
  const at::Tensor matrix = Random(51).normal({2, 2}, at::kFloat, device());
  const std::function<at::Tensor()> ops[] = {[&] { return at::mm(matrix, matrix); },
                                             [&] { return at::linear(matrix, matrix); },
                                             [&] { return at::matmul(matrix, matrix); },
                                             [&] { return at::softmax(matrix.to(at::kHalf), 0); },
                                             [&] { return at::addmm(matrix, matrix, matrix); },
                                             [] {
                                               return torch::ones({2, 2}, device());
                                             },
                                             [&] {
                                               const c10::InferenceMode guard;
                                               at::relu(matrix);
                                               return at::mm(matrix, matrix);
                                             }};
  for (const auto& op : ops) {
    const State before = state_of(type());
    const at::ScalarType uncast = op().scalar_type();
    std::optional<OpenAutocast> opened(std::in_place, std::vector{type()}, at::kHalf);
    EXPECT_EQ(mm_type(), at::kHalf);
    std::thread([&] { opened.reset(); }).join();
    EXPECT_EQ(op().scalar_type(), uncast);
    EXPECT_EQ(mm_type(), at::kFloat);
    EXPECT_TRUE(state_of(type()) == before);
  }
}

TEST_P(AutocastThreadsTest, WhatIsStillOpenCastsAfterAnotherThreadHasClosed) {
  const OpenAutocast stays = open();
  std::optional<OpenAutocast> opened(std::in_place, std::vector{type()}, at::kHalf);
  std::thread([&] { opened.reset(); }).join();
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastThreadsTest, ABackwardIsUncastButWhereAForwardsStateIsApplied) {
  const OpenAutocast opened = open(at::kBFloat16);
  const AutocastState forward = autocast::capture_state();
  const ShieldBackward shield;
  EXPECT_EQ(mm_type(), at::kFloat);
  {
    const auto casts = forward.apply();
    EXPECT_EQ(mm_type(), at::kBFloat16);
    const ShieldBackward nested;
    EXPECT_EQ(mm_type(), at::kFloat);
  }
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastThreadsTest, AnUncastForwardIsAppliedUncast) {
  const OpenAutocast opened = open();
  const auto forward = [] {
    const disable_casts island;
    return autocast::capture_state();
  }();
  const ShieldBackward shield;
  const auto casts = forward.apply();
  EXPECT_EQ(mm_type(), at::kFloat);
}

/// Runs `backward`, of a matrix product in float32, and expects its grad in all 24 bits.
template <class Backward>
void expect_island_in_float32(at::Device device, const Backward& backward) {
  const auto x = at::ones({2, 2}, device).requires_grad_();
  const auto y = [&] {
    const disable_casts island;
    return x.mm(at::full({2, 2}, 1.0 + 0x1p-20, device));
  }();
  EXPECT_EQ(backward(x, y)[0][0].template item<float>(), 2.0f + 0x1p-19f);
}

at::Tensor grad_of(const at::Tensor& x, const at::Tensor& y) {
  return torch::autograd::grad({y}, {x}, {at::ones_like(y)}).front();
}

/// Whose backward calls the engine.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::function<at::Tensor()>* inner) {
    context->saved_data["inner"] = reinterpret_cast<int64_t>(inner);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    const auto* inner =
        reinterpret_cast<const std::function<at::Tensor()>*>(context->saved_data["inner"].toInt());
    return {(*inner)(), {}};
  }
};

TEST_P(AutocastThreadsTest, ABackwardRunsInFloat32AsItsIsland) {
  const OpenAutocast opened = open();
  expect_island_in_float32(device(), [](const at::Tensor& x, const at::Tensor& y) {
    y.backward(at::ones_like(y));
    return x.grad();
  });
  expect_island_in_float32(device(), grad_of);
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastThreadsTest, ANestedBackwardRunsInFloat32AsItsIsland) {
  const OpenAutocast opened = open();
  expect_island_in_float32(device(), [&](const at::Tensor& x, const at::Tensor& y) {
    const std::function<at::Tensor()> inner = [&] { return grad_of(x, y); };
    const auto outer = at::ones({2, 2}, device()).requires_grad_();
    return grad_of(outer, Nested::apply(outer, &inner));
  });
}

TEST_P(AutocastThreadsTest, ABackwardInAThreadThatWorksForItRunsInFloat32AsItsIsland) {
  const OpenAutocast opened = open();
  const at::ThreadLocalState handed_over;
  expect_island_in_float32(device(), [&](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor grad;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(handed_over);
      grad = grad_of(x, y);
    }).join();
    return grad;
  });
}

TEST_P(AutocastThreadsTest, ABackwardInAScopeOfTheProgramIsCastByIt) {
  const OpenAutocast opened = open();
  const auto x = at::ones({2, 2}, device()).requires_grad_();
  const auto y = x.mm(at::full({2, 2}, 1.0 + 0x1p-20, device()));
  EXPECT_EQ(grad_of(x, y)[0][0].item<float>(), 2.0f);
}

/// Autograd passes this state to its threads for CUDA devices.
TEST_P(AutocastThreadsTest, AForwardsStateIsAppliedInTheThreadsThatWorkForABackward) {
  const OpenAutocast opened = open(at::kBFloat16);
  const AutocastState forward = autocast::capture_state();
  const ShieldBackward shield;
  const at::ThreadLocalState handed_over;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(handed_over);
    EXPECT_EQ(mm_type(), at::kFloat);
    const auto casts = forward.apply();
    EXPECT_EQ(mm_type(), at::kBFloat16);
    EXPECT_EQ(casting_to(type()), at::kBFloat16);
  }).join();
}

/// A checkpoint casts by a scope where it computes a part of the forward again.
TEST_P(AutocastThreadsTest, AnIslandInACheckpointIsUncastInTheThreadsThatWorkForABackward) {
  const OpenAutocast opened = open(at::kBFloat16);
  const ShieldBackward shield;
  const at::ThreadLocalState handed_over;
  const auto recompute = [&] {
    const autocast as_in_forward(type(), at::kBFloat16);
    EXPECT_EQ(mm_type(), at::kBFloat16);
    EXPECT_EQ(casting_to(type()), at::kBFloat16);
    {
      const disable_casts island;
      EXPECT_EQ(mm_type(), at::kFloat);
    }
    EXPECT_EQ(mm_type(), at::kBFloat16);
  };
  recompute();
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(handed_over);
    recompute();
  }).join();
}

TORCHAMP_ON_EACH_DEVICE(AutocastThreadsTest);

}  // namespace
}  // namespace torchamp

// A step is bit for bit the same for every partition of the work and location of its table.
#include "step.h"

namespace kernel_tests {
namespace {

using torchamp::HyperRow;

class Variants : public Step<torchamp::Adam> {
 protected:
  /// The number of launches of a step, which must follow the rule.
  int expect_launches(std::vector<TensorList>& lists) {
    Scalars scalars(lists[0].size());
    const int before = launches();
    expect_step(lists, /*models=*/true, scalars, queue_);
    return launches() - before;
  }

  static std::vector<TensorList> first(std::vector<TensorList> lists, std::size_t tensors) {
    for (TensorList& list : lists) list.erase(list.begin() + tensors, list.end());
    return lists;
  }

  Tables tables_;
  const cuda::Queue queue_{0, nullptr, &tables_};
};

TEST_F(Variants, SendAShortTableInASmallParameter) {
  auto few = first(make(/*tiny=*/false, /*compact=*/false), 12);
  EXPECT_EQ(expect_launches(few), 1);
  EXPECT_EQ(last_launched(), "torchamp_step_adam_small");
  EXPECT_EQ(tables_.puts, 0);
}

TEST_F(Variants, KeepALongTableOnTheDevice) {
  auto many = make(/*tiny=*/true, /*compact=*/false);
  EXPECT_EQ(expect_launches(many), 1);
  EXPECT_EQ(last_launched(), "torchamp_step_adam_resident");
  EXPECT_EQ(tables_.puts, 1);
}

TEST_F(Variants, SendALongTableInSeveralParametersIntoACapture) {
  tables_.is_capturing = true;
  auto many = make(/*tiny=*/true, /*compact=*/false);
  EXPECT_GT(expect_launches(many), 2);
  EXPECT_EQ(last_launched(), "torchamp_step_adam");
}

/// One-element parameters of value 0 with grads of 1: a step of SGD gives -lr.
class PlainSgd : public testing::Test {
 protected:
  void SetUp() override { cuda::use_driver(driver()); }

  void make(int tensors) {
    plan_.lists = 3;
    for (int t = 0; t < tensors; ++t) {
      grads_.emplace_back(DType::kFloat32, 1);
      params_.emplace_back(DType::kFloat32, 1);
      grads_.back().set(0, 1.0f);
      plan_.data.insert(plan_.data.end(), {grads_.back().data(), params_.back().data(), nullptr});
      plan_.dtypes.insert(plan_.dtypes.end(), 3, DType::kFloat32);
      plan_.offsets.push_back(t + 1);
      plan_.positions.push_back(t);
    }
    steps_.assign(tensors, 0.0f);
  }

  int step(const std::vector<HyperRow>& rows, const float* skip = nullptr,
           cuda::Queue queue = kQueue) {
    const int before = launches();
    const StepInputs inputs{steps_.data(), nullptr, skip, nullptr, nullptr, nullptr, false};
    cuda::step(queue, Algorithm::kSgd, plan_, inputs, rows, &ticket_);
    EXPECT_EQ(ticket_, 0u);
    return launches() - before;
  }

  static HyperRow row(double lr) { return {{lr}}; }

  TensorList grads_, params_;
  Plan plan_;
  std::vector<float> steps_;
  uint32 ticket_ = 0;
};

TEST_F(PlainSgd, CountsNeighbouringPositions) {
  make(700);
  step({row(0.5)});
  step({row(0.5)});
  EXPECT_EQ(steps_, std::vector<float>(700, 2.0f));
}

TEST_F(PlainSgd, TakesAGroupForEveryTensor) {
  constexpr int kTensors = 400;
  make(kTensors);
  std::vector<HyperRow> rows;
  for (int t = 0; t < kTensors; ++t) {
    plan_.rows.push_back(kTensors - 1 - t);
    rows.push_back(row(t + 1));
  }
  EXPECT_EQ(step(rows), 2);
  for (int t = 0; t < kTensors; ++t) EXPECT_EQ(params_[t][0], -(kTensors - t)) << "tensor " << t;
}

TEST_F(PlainSgd, ReadsHyperparametersThatAreOnTheDevice) {
  make(4);
  const double on_device[torchamp::kHyperSize] = {2.0}, wide = 3.0;
  const float narrow = 4.0f;
  std::vector<HyperRow> rows(4, row(1.0));
  rows[1].on_device = on_device;
  rows[2].lr = &wide;
  rows[2].lr_is_double = true;
  rows[3].on_device = on_device;
  rows[3].lr = &narrow;
  plan_.rows = {0, 1, 2, 3};
  step(rows);
  for (int t = 0; t < 4; ++t) EXPECT_EQ(params_[t][0], -1.0f - t);
}

TEST_F(PlainSgd, KeepsOnTheDeviceNoMoreGroupsThanAnEntryCanIndex) {
  constexpr int kTensors = 700;
  make(kTensors);
  for (const int groups : {cuda::kMostRows, cuda::kMostRows + 1}) {
    std::vector<HyperRow> rows(groups);
    plan_.rows.clear();
    for (int t = 0; t < kTensors; ++t) {
      plan_.rows.push_back(groups - 1 - t);
      rows[groups - 1 - t] = row(t + 1);
      params_[t].set(0, 0.0f);
    }
    Tables tables;
    step(rows, nullptr, {0, nullptr, &tables});
    EXPECT_EQ(tables.puts, groups == cuda::kMostRows ? 1 : 0);
    for (int t = 0; t < kTensors; ++t) ASSERT_EQ(params_[t][0], -(t + 1)) << "tensor " << t;
  }
}

/// Simulates a write by another stream: the step of one block makes later blocks skip. Where blocks
/// run in a random order, it may be the last one.
TEST_F(PlainSgd, LeavesTheTicketAtZeroWhereSkipChangesMeanwhile) {
  make(100);
  int skipped = 0;
  for (int writer = 0; writer < 100; writer += 7) {
    for (Tensor& param : params_) param.set(0, 0.0f);
    step({row(1.0)}, static_cast<const float*>(params_[writer].data()));
    EXPECT_EQ(params_[writer][0], -1.0f);
    for (const Tensor& param : params_) skipped += param[0] == 0.0f;
  }
  EXPECT_GT(skipped, 0);
}

}  // namespace
}  // namespace kernel_tests

// Unscaling of sparse grads, as of an embedding with sparse=true, into master grads.
#include <ATen/ops/sparse_coo_tensor.h>
#include <torchamp/detail/masters.h>

#include "device.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;

constexpr double kLossScale = 1024;

/// One parameter of four rows, with a float32 master (float16 model) or as its own master.
struct Tracked {
  Tracked(bool has_master, at::Device device)
      : found_inf(scalar_of(0, at::kFloat, device)), device(device) {
    const Tensor values = Random(40).normal({4, 2}, at::kFloat, device);
    param = has_master ? values.to(at::kHalf) : values;
    masters.track(param, has_master ? values : Tensor());
  }

  void backward(const Tensor& grad) {
    masters.grads.prepare_backward();
    param.mutable_grad() = grad;
    found_inf = masters.grads.finish_backward(scalar_of(kLossScale, at::kFloat, device), found_inf);
  }
  Tensor master_grad() const { return masters.weights.master_params()[0].grad(); }

  core::Masters masters;
  Tensor param, found_inf;
  at::Device device;
};

class SparseGradsTest : public ::testing::TestWithParam<std::tuple<at::Device, bool>> {
 protected:
  at::Device device() const { return std::get<0>(GetParam()); }
  /// A scaled grad with rows 3, 1 and 3 again: coalesced, it is 1, 0, and 2·value.
  Tensor sparse(double value) const {
    const Tensor rows = tensor_of({3, 1, 3}, at::kLong, device()).view({1, 3});
    const Tensor values = tensor_of({value, 0, 1, 1, value, 0}, at::kFloat, device()).view({3, 2});
    return at::sparse_coo_tensor(rows, values.mul(kLossScale).to(tracked_.param.scalar_type()),
                                 {4, 2});
  }
  Tensor dense(double value) const {
    return tensor_of(std::vector<double>(8, value * kLossScale), tracked_.param.scalar_type(),
                     device())
        .view({4, 2});
  }
  /// `base` everywhere, plus the unscaled sparse(value) in rows 1 and 3.
  Tensor expected(double value, double base = 0) const {
    const double b = base;
    return tensor_of({b, b, 1 + b, 1 + b, b, b, 2 * value + b, b}, at::kFloat, device())
        .view({4, 2});
  }

  Tracked tracked_{std::get<1>(GetParam()), std::get<0>(GetParam())};
};

TEST_P(SparseGradsTest, StaySparse) {
  tracked_.backward(sparse(3));
  EXPECT_TRUE(tracked_.master_grad().is_sparse());
  EXPECT_EQ(tracked_.master_grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(tracked_.master_grad().to_dense(), expected(3)));
  EXPECT_EQ(tracked_.found_inf.item<float>(), 0);
}

TEST_P(SparseGradsTest, AddUp) {
  tracked_.backward(sparse(3));
  tracked_.backward(sparse(4));
  EXPECT_TRUE(same_bits(tracked_.master_grad().to_dense(), expected(3).add(expected(4))));
}

TEST_P(SparseGradsTest, AddOntoDenseOnes) {
  tracked_.backward(dense(7));
  tracked_.backward(sparse(3));
  EXPECT_TRUE(same_bits(tracked_.master_grad().to_dense(), expected(3, 7)));
}

TEST_P(SparseGradsTest, TakeDenseOnesOnTop) {
  tracked_.backward(sparse(3));
  tracked_.backward(dense(7));
  EXPECT_TRUE(same_bits(tracked_.master_grad().to_dense(), expected(3, 7)));
}

TEST_P(SparseGradsTest, AreChecked) {
  tracked_.backward(sparse(INFINITY));
  EXPECT_EQ(tracked_.found_inf.item<float>(), 1);
  EXPECT_EQ(tracked_.masters.grads.nonfinite_params(), (std::vector<int64_t>{0}));
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<at::Device, bool>>& info) {
  return std::string(std::get<0>(info.param).is_cuda() ? "cuda" : "cpu") +
         (std::get<1>(info.param) ? "_with_master" : "_without_master");
}

INSTANTIATE_TEST_SUITE_P(On, SparseGradsTest,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Bool()),
                         case_name);

}  // namespace
}  // namespace torchamp

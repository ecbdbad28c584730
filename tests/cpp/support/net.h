// A small network that learns in a few steps, for tests of initialize.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torchamp/initialize.h>
#include <torchamp/scale_loss.h>

#include <ostream>
#include <string>
#include <vector>

#include "device.h"
#include "tensors.h"

namespace torchamp {

/// Linear, batch norm, ReLU, linear: floating-point [n, 4] to [n, 2].
struct NetImpl : torch::nn::Module {
  NetImpl();
  at::Tensor forward(const at::Tensor& data);

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

/// A net whose weights depend on the seed alone, on any device.
Net make_net(at::Device device, uint64_t seed = 1);

struct Batch {
  at::Tensor data;
  at::Tensor target;
};

/// Points labelled by whether they are outside a ball, which takes a hidden layer to learn.
Batch make_batch(at::Device device, unsigned seed = 1);

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target);

/// Options that print nothing.
inline Options quiet(OptLevel level) {
  return Options(level).verbosity(0);
}

/// The result of a skipped step on `device`: false, or true where only a GPU knows.
bool result_of_skipped(const torch::optim::Optimizer& optimizer, at::Device device);

std::vector<at::Tensor> params_of(const torch::nn::Module& module);
/// The dtypes of `tensors`, "Half Float …".
std::string dtypes_of(const std::vector<at::Tensor>& tensors);

class LevelTest : public ::testing::TestWithParam<std::tuple<at::Device, OptLevel>> {
 protected:
  static at::Device device() { return std::get<0>(GetParam()); }
  static OptLevel level() { return std::get<1>(GetParam()); }
};

inline std::string level_name(
    const ::testing::TestParamInfo<std::tuple<at::Device, OptLevel>>& info) {
  const bool is_cuda = std::get<0>(info.param).is_cuda();
  return std::string(is_cuda ? "cuda_" : "cpu_") + name(std::get<1>(info.param));
}

}  // namespace torchamp

#define TORCHAMP_AT_LEVELS(Suite, ...)                                                         \
  INSTANTIATE_TEST_SUITE_P(                                                                    \
      On, Suite,                                                                               \
      ::testing::Combine(::testing::ValuesIn(::torchamp::devices()),                           \
                         ::testing::ValuesIn(std::vector<::torchamp::OptLevel>{__VA_ARGS__})), \
      ::torchamp::level_name)

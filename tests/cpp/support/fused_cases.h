// A table of the fused optimizers and LibTorch's equivalents.
#pragma once

#include <torchamp/optim/fused_optimizer.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "device.h"
#include "tensors.h"

namespace torchamp {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

struct FusedCase {
  std::string name;
  std::function<std::unique_ptr<optim::FusedOptimizer>(const Groups&)> ours;
  /// Options of a group with only the learning rate set.
  std::function<std::unique_ptr<torch::optim::OptimizerOptions>(double lr)> our_lr;
  /// LibTorch's optimizer with the same options; empty if there is none.
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)> theirs = {};
  std::function<std::unique_ptr<torch::optim::OptimizerOptions>(double lr)> their_lr = {};
};

/// At least one case for every algorithm.
const std::vector<FusedCase>& fused_cases();
/// The cases with an equivalent in LibTorch.
std::vector<FusedCase> paired_cases();
inline std::ostream& operator<<(std::ostream& out, const FusedCase& each) {
  return out << each.name;
}

/// Leaves of various sizes: one empty, one 0-dim, one channels-last.
std::vector<at::Tensor> make_params(at::Device device, at::ScalarType dtype = at::kFloat);
/// Copies with the same values.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& params);
/// The grads of step `step`, the same in every run.
void set_grads(const std::vector<at::Tensor>& params, int step);
/// Runs steps, starting with number `first`.
void train(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, int steps,
           int first = 0);

/// The first two params with the defaults, the others with a learning rate of 0.03.
Groups our_groups(const FusedCase& each, const std::vector<at::Tensor>& params);
Groups their_groups(const FusedCase& each, const std::vector<at::Tensor>& params);

const optim::FusedParamState* state_of(torch::optim::Optimizer& optimizer, const at::Tensor& param);
/// Copies of everything that a step may write.
std::vector<at::Tensor> everything(torch::optim::Optimizer& optimizer,
                                   const std::vector<at::Tensor>& params);

/// Largest difference, relative to values above 1.
double distance(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected);

class FusedCaseTest : public ::testing::TestWithParam<std::tuple<at::Device, FusedCase>> {
 protected:
  static at::Device device() { return std::get<0>(GetParam()); }
  static const FusedCase& each() { return std::get<1>(GetParam()); }
  /// One group with all defaults.
  static std::unique_ptr<optim::FusedOptimizer> ours(const std::vector<at::Tensor>& params) {
    return each().ours(Groups{torch::optim::OptimizerParamGroup(params)});
  }
};

inline std::string fused_case_name(
    const ::testing::TestParamInfo<std::tuple<at::Device, FusedCase>>& info) {
  return (std::get<0>(info.param).is_cuda() ? "cuda_" : "cpu_") + std::get<1>(info.param).name;
}

}  // namespace torchamp

#define TORCHAMP_ON_FUSED_CASES(Suite, cases)                                                    \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      On, Suite, ::testing::Combine(::testing::ValuesIn(devices()), ::testing::ValuesIn(cases)), \
      fused_case_name)

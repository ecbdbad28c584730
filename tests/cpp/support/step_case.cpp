#include "step_case.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "oracle.h"

namespace torchamp {
namespace {

using at::Tensor;
using Values = std::vector<double>;

Tensor as_tensor(const Values& values, at::Device device) {
  return tensor_of(values, at::kFloat, device);
}

/// 1, 2, 3, …, with 0 at each `every`th position.
Tensor norms(int64_t length, int64_t every, unsigned seed, at::Device device) {
  const Tensor row = Random(seed).normal({length}, at::kFloat, at::kCPU).abs_().add_(1);
  for (int64_t i = 0; i < length; i += every) row[i] = 0;
  return row.to(device);
}

void add_norms(StepScalars& scalars, StepAlgorithm algorithm, int64_t length, at::Device device) {
  const bool averages = algorithm == StepAlgorithm::kNovoGrad;
  const bool adapts = algorithm == StepAlgorithm::kLambApply;
  if (adapts) scalars.param_norms = norms(length, 5, 31, device);
  if (adapts || averages) scalars.update_norms = norms(length, 7, 32, device);
  if (averages) scalars.norm_averages = norms(length, 11, 33, device);
}

/// Whether a state is a second moment, which is never negative.
bool is_of_squares(StepAlgorithm algorithm, int64_t state) {
  switch (algorithm) {
    case StepAlgorithm::kAdam:
    case StepAlgorithm::kLambUpdate:
      return state > 0;
    default:
      return false;
  }
}

double value_at(const std::optional<Tensor>& row, size_t i) {
  return row ? (*row)[static_cast<int64_t>(i)].item<double>() : 0.0;
}

bool counts(StepAlgorithm algorithm) {
  return algorithm != StepAlgorithm::kLambApply;
}

/// LAMB's second pass takes updates instead of grads.
double grad_factor(const StepCase& call, size_t i) {
  if (!call.scalars.grad_factor || call.algorithm == StepAlgorithm::kLambApply) return 1.0;
  const auto& unscaled = call.unscaled;
  if (std::find(unscaled.begin(), unscaled.end(), i) != unscaled.end()) return 1.0;
  return call.scalars.grad_factor->item<double>();
}

oracle::StepTensor tensor_at(const StepCase& call, size_t i) {
  oracle::StepTensor tensor;
  tensor.step = value_at(call.scalars.steps, i) + (counts(call.algorithm) ? 1 : 0);
  tensor.param_norm = value_at(call.scalars.param_norms, i);
  tensor.update_norm = value_at(call.scalars.update_norms, i);
  const double before = value_at(call.scalars.norm_averages, i);
  tensor.norm_average = oracle::norm_average(call.options(i), tensor, before);
  return tensor;
}

/// The oracle's unrounded result in each list at position i.
std::vector<Values> expected_at(const StepCase& call, const oracle::StepTensor& tensor, size_t i) {
  const size_t states = call.all.lists.size() - 3;
  const double factor = grad_factor(call, i);
  std::vector<Values> rows;
  for (size_t list = 0; list < 2 + states; ++list) {
    rows.push_back(oracle::values<double>(call.all.lists[list][i]));
  }
  for (size_t k = 0; k < rows[0].size(); ++k) {
    oracle::StepElement element{factor * rows[0][k], rows[1][k], {}};
    for (size_t s = 0; s < states; ++s) element.states[s] = rows[2 + s][k];
    oracle::step(call.algorithm, call.options(i), tensor, element);
    rows[1][k] = element.param;
    for (size_t s = 0; s < states; ++s) rows[2 + s][k] = element.states[s];
  }
  rows.push_back(rows[1]);
  return rows;
}

/// Within one rounding to `got`'s dtype and a few in the compute dtype of `expected`.
::testing::AssertionResult agrees(const Tensor& got, const Values& expected,
                                  at::ScalarType computed_in) {
  const double noise = 8 * spacing_at_one(computed_in);
  const double relative = spacing_at_one(got.scalar_type()) + noise;
  const double smallest = got.scalar_type() == at::kHalf ? 0x1p-24 : 0.0;
  const Values values = oracle::values<double>(got);
  const Values rounded = oracle::values<double>(tensor_of(expected, got.scalar_type()));
  for (size_t k = 0; k < expected.size(); ++k) {
    const double tolerance = relative * std::abs(expected[k]) + noise + smallest;
    if (values[k] == rounded[k] || std::abs(values[k] - expected[k]) <= tolerance) continue;
    return ::testing::AssertionFailure()
           << "element " << k << ": got " << values[k] << ", expected " << expected[k];
  }
  return ::testing::AssertionSuccess();
}

void expect_position_untouched(const StepCase& before, const StepCase& after, size_t i) {
  for (size_t list = 0; list < after.all.lists.size(); ++list) {
    const Tensor &old = before.all.lists[list][i], &now = after.all.lists[list][i];
    if (!old.defined()) continue;
    EXPECT_TRUE(same_bits(now, old)) << after.all.names[i] << ", list " << list;
  }
  EXPECT_EQ(value_at(after.scalars.steps, i), value_at(before.scalars.steps, i));
  EXPECT_EQ(value_at(after.scalars.norm_averages, i), value_at(before.scalars.norm_averages, i));
}

void expect_position_stepped(const StepCase& before, const StepCase& after, size_t i) {
  const oracle::StepTensor tensor = tensor_at(before, i);
  const std::vector<Values> expected = expected_at(before, tensor, i);
  const bool wide = before.params()[i].scalar_type() == at::kDouble;
  for (size_t list = 1; list < expected.size(); ++list) {
    const Tensor& got = after.all.lists[list][i];
    if (!got.defined()) continue;
    EXPECT_TRUE(agrees(got, expected[list], wide ? at::kDouble : at::kFloat))
        << after.all.names[i] << ", list " << list << ", group " << i % after.groups.size();
  }
  EXPECT_EQ(value_at(after.scalars.steps, i), tensor.step) << after.all.names[i];
  if (!after.scalars.norm_averages) return;
  EXPECT_FLOAT_EQ(value_at(after.scalars.norm_averages, i), tensor.norm_average);
}

}  // namespace

std::vector<Tensor> StepCase::states() const {
  std::vector<Tensor> states;
  for (size_t list = 2; list + 1 < all.lists.size(); ++list) {
    states.insert(states.end(), all.lists[list].begin(), all.lists[list].end());
  }
  return states;
}

std::vector<Tensor> StepCase::written() const {
  std::vector<Tensor> tensors = {scalars.steps};
  if (scalars.norm_averages) tensors.push_back(*scalars.norm_averages);
  for (size_t list = 1; list < all.lists.size(); ++list) {
    for (const Tensor& tensor : all.lists[list]) {
      if (tensor.defined()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

StepCase make_case(StepAlgorithm algorithm, std::vector<oracle::StepOptions> groups, Lists all,
                   at::Device device) {
  const auto length = static_cast<int64_t>(all.length());
  StepCase call{algorithm, std::move(groups), std::move(all), {}};
  Values hyper, group_of, steps;
  for (const auto& options : call.groups) {
    const Values row = oracle::hyper_row(algorithm, options);
    hyper.insert(hyper.end(), row.begin(), row.end());
  }
  const auto group_count = static_cast<int64_t>(call.groups.size());
  for (int64_t i = 0; i < length; ++i) {
    group_of.push_back(static_cast<double>(i % group_count));
    steps.push_back(std::vector<double>{0, 1, 999}[i % 3]);
  }
  call.scalars.steps = as_tensor(steps, device);
  call.scalars.hyper = tensor_of(hyper, at::kDouble).view({-1, kHyperparameters});
  call.scalars.groups = tensor_of(group_of, at::kInt);
  add_norms(call.scalars, algorithm, length, device);
  return call;
}

Lists step_lists(StepAlgorithm algorithm, int64_t positions, at::Device device) {
  const int64_t states = states_of(algorithm);
  Lists all = mixed(static_cast<int>(3 + states), positions, device);
  for (int64_t s = 0; s < states; ++s) {
    if (!is_of_squares(algorithm, s)) continue;
    for (const Tensor& state : all.lists[2 + s]) {
      if (state.defined()) state.abs_();
    }
  }
  return all;
}

void renew_grads(const StepCase& call, unsigned seed) {
  Random random(seed);
  for (const Tensor& grad : call.grads()) {
    if (grad.defined()) grad.copy_(random.normal(grad.sizes(), at::kFloat, at::kCPU));
  }
}

void run(const StepCase& call) {
  const std::vector<Tensor> states = call.states();
  fused_step(call.algorithm,
             {call.grads(), call.params(), states, call.models(), nullptr, call.unscaled},
             call.scalars);
}

StepCase copy_of(const StepCase& call) {
  StepCase copy = call;
  for (auto& list : copy.all.lists) list = clones(list);
  copy.scalars.steps = call.scalars.steps.clone();
  if (call.scalars.norm_averages) copy.scalars.norm_averages = call.scalars.norm_averages->clone();
  return copy;
}

bool has_work(const Lists& all, size_t i) {
  for (size_t list = 0; list + 1 < all.lists.size(); ++list) {
    const Tensor& tensor = all.lists[list][i];
    if (!tensor.defined() || tensor.numel() == 0) return false;
  }
  return true;
}

void expect_stepped(const StepCase& before, const StepCase& after) {
  for (size_t i = 0; i < before.all.length(); ++i) {
    if (has_work(before.all, i)) {
      expect_position_stepped(before, after, i);
    } else {
      expect_position_untouched(before, after, i);
    }
  }
}

void expect_untouched(const StepCase& before, const StepCase& after) {
  for (size_t i = 0; i < before.all.length(); ++i) expect_position_untouched(before, after, i);
}

}  // namespace torchamp

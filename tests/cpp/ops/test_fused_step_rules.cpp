// The kernels of fused_step against the rules of math/optim, bit for bit.
#include "device.h"
#include "math/optim/step.h"
#include "oracle.h"
#include "step_case.h"

namespace torchamp {
namespace {

using at::Tensor;
using oracle::StepOptions;
using Rows = std::vector<std::vector<float>>;

float* pointer(const std::optional<Tensor>& row) {
  return row ? row->mutable_data_ptr<float>() : nullptr;
}

/// Every row of `call`, on the CPU.
StepInputs inputs_of(const StepScalars& s) {
  return {s.steps.mutable_data_ptr<float>(),
          pointer(s.grad_factor),
          pointer(s.skip),
          pointer(s.param_norms),
          pointer(s.update_norms),
          pointer(s.norm_averages),
          s.stochastic_rounding};
}

std::vector<HyperRow> rows_of(const StepScalars& s) {
  std::vector<HyperRow> rows(s.hyper.size(0));
  for (size_t g = 0; g < rows.size(); ++g) {
    std::copy_n(s.hyper.const_data_ptr<double>() + g * kHyperSize, kHyperSize, rows[g].values);
  }
  return rows;
}

/// A dense tensor's elements in memory order.
Tensor flat(const Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

/// `values` as a step stores them in a list of `dtype`.
Tensor stored(const std::vector<float>& values, at::ScalarType dtype, bool stochastic, uint32 key,
              int list) {
  std::vector<double> stored(values.begin(), values.end());
  if (stochastic && dtype == at::kBFloat16) {
    for (size_t k = 0; k < values.size(); ++k) {
      stored[k] =
          to_float(round_stochastically(values[k], noise(key, static_cast<int64>(k), list)));
    }
  }
  return tensor_of(stored, dtype);
}

template <class Rule>
Rows stepped_rows(const StepCase& call, const typename Rule::Coefficients& coefficients, size_t i) {
  Rows rows;
  for (size_t list = 0; list < 2 + Rule::kStates; ++list) {
    rows.push_back(oracle::values<float>(flat(call.all.lists[list][i])));
  }
  for (size_t k = 0; k < rows[0].size(); ++k) {
    float states[Rule::kStates + 1];
    for (int s = 0; s < Rule::kStates; ++s) states[s] = rows[2 + s][k];
    rows[1][k] = Rule::step(coefficients, rows[0][k], rows[1][k], states);
    for (int s = 0; s < Rule::kStates; ++s) rows[2 + s][k] = states[s];
  }
  rows.push_back(rows[1]);
  return rows;
}

void expect_rows(const StepCase& got, const Rows& rows, size_t i, uint32 key) {
  for (size_t list = 1; list < rows.size(); ++list) {
    const Tensor& tensor = got.all.lists[list][i];
    if (!tensor.defined()) continue;
    const bool is_state = list > 1 && list + 1 < rows.size();
    const bool stochastic = is_state || (list == 1 && got.scalars.stochastic_rounding);
    const Tensor expected =
        stored(rows[list], tensor.scalar_type(), stochastic, key, static_cast<int>(list));
    EXPECT_TRUE(same_bits(flat(tensor), expected)) << got.all.names[i] << ", list " << list;
  }
}

/// `after` is the rule's result for `before` wherever a kernel has stepped it.
template <class Rule>
void expect_rule(const StepCase& before, const StepCase& after) {
  const StepInputs inputs = inputs_of(before.scalars);
  const std::vector<HyperRow> rows = rows_of(before.scalars);
  int stepped = 0;
  for (size_t i = 0; i < before.all.length(); ++i) {
    if (!before.all.flat[i] || !has_work(before.all, i)) continue;
    const auto position = static_cast<int32>(i);
    const HyperRow& row = rows[i % rows.size()];
    const auto c = coefficients<Rule>(inputs, {position, &row, /*unscaled=*/false});
    expect_rows(after, stepped_rows<Rule>(before, c, i), i, noise_key<Rule>(inputs, position));
    ++stepped;
  }
  EXPECT_GT(stepped, 50);
}

void expect_rule(const StepCase& before, const StepCase& after) {
  switch (static_cast<Algorithm>(before.algorithm)) {
#define TORCHAMP_CASE(Name, name) \
  case Algorithm::k##Name:        \
    return expect_rule<Name>(before, after);
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
}

/// The call's scalars on the CPU, where the rules run.
StepCase on_cpu(StepCase call) {
  const auto move = [](auto& row) { row = row->cpu(); };
  call.scalars.steps = call.scalars.steps.cpu();
  for (auto* row : {&call.scalars.grad_factor, &call.scalars.skip, &call.scalars.param_norms,
                    &call.scalars.update_norms, &call.scalars.norm_averages}) {
    if (*row) move(*row);
  }
  return call;
}

std::vector<StepOptions> two_groups() {
  std::vector<StepOptions> groups(2);
  groups[0].weight_decay = groups[1].weight_decay = 0.3;
  groups[0].momentum = groups[1].momentum = 0.9;
  groups[1].nesterov = groups[1].decoupled = groups[1].maximize = true;
  return groups;
}

class FusedStepRulesTest : public DeviceTest {};

TEST_P(FusedStepRulesTest, AreWhatTheKernelsCompute) {
  if (kernels_are_off()) GTEST_SKIP() << "ATen rounds elsewhere";
  for (int which = 0; which <= static_cast<int>(StepAlgorithm::kLambApply); ++which) {
    const auto algorithm = static_cast<StepAlgorithm>(which);
    StepCase call =
        make_case(algorithm, two_groups(), step_lists(algorithm, 800, device()), device());
    call.scalars.grad_factor = scalar_of(0.3f, at::kFloat, device());
    call.scalars.stochastic_rounding = which % 2 == 0;
    const StepCase before = on_cpu(copy_of(call));
    run(call);
    SCOPED_TRACE(which);
    expect_rule(before, call);
  }
}

TORCHAMP_ON_EACH_DEVICE(FusedStepRulesTest);

}  // namespace
}  // namespace torchamp

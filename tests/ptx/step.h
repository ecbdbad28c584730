// The optimizers' step, compared with plain loops over the rules of math/optim.
#pragma once

#include "cases.h"
#include "checks.h"
#include "cuda/arguments.h"
#include "cuda/launch_table.h"
#include "driver.h"
#include "queues.h"

namespace kernel_tests {

using torchamp::Algorithm;
using torchamp::StepInputs;
using torchamp::uint32;
namespace cuda = torchamp::cuda;

/// Hyperparameters of two groups that are valid for every algorithm: fractions first, then
/// switches.
inline const std::vector<torchamp::HyperRow> kHyper = {{{0.1, 0.9, 0.99, 0.01, 0.3, 0, 0, 1, 1}},
                                                       {{0.05, 0.8, 0.9, 0.1, 0.2, 1, 1, 0, 0, 1}}};

/// The same groups, whose hyperparameters or learning rates are read from the device.
inline std::vector<torchamp::HyperRow> rows_on_device() {
  static const double lr = 0.2;
  static const float narrow_lr = 0.15f;
  std::vector<torchamp::HyperRow> rows = kHyper;
  rows[0].on_device = kHyper[1].values;
  rows[0].lr = &lr;
  rows[0].lr_is_double = true;
  rows[1].lr = &narrow_lr;
  return rows;
}

/// A step's scalars, with room for the positions of plan_of().
struct Scalars {
  explicit Scalars(std::size_t tensors)
      : steps(2 * tensors),
        param_norms(2 * tensors),
        update_norms(2 * tensors),
        norm_averages(2 * tensors) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      steps[i] = static_cast<float>(i / 2 % 3);
      param_norms[i] = static_cast<float>(i / 2 % 5);
      update_norms[i] = 0.7f * static_cast<float>(i / 2 % 7);
      norm_averages[i] = 1.0f + static_cast<float>(i % 11);
    }
  }

  StepInputs inputs() {
    return {steps.data(),
            has_factor ? &grad_factor : nullptr,
            has_factor ? &skip : nullptr,
            param_norms.data(),
            update_norms.data(),
            norm_averages.data(),
            stochastic_rounding};
  }

  std::vector<float> steps, param_norms, update_norms, norm_averages;
  std::vector<torchamp::HyperRow> rows = kHyper;
  int stride = 2;  ///< from one tensor's position to the next's
  float grad_factor = 1.0f / 3.0f;
  float skip = 0.0f;
  bool has_factor = true;
  bool stochastic_rounding = false;
};

inline const int kMixes = 4;

/// Mixes of dtypes, cycling through all sizes: tensors that are aligned in all lists, that can be
/// aligned together, with only a misaligned grad, and with random alignment.
inline std::vector<TensorList> step_cases(int lists) {
  std::vector<TensorList> cases(lists);
  std::mt19937 random(7);
  for (const int64 size : kSizes) {
    for (int mix = 0; mix < 4 * kMixes; ++mix) {
      for (int list = 0; list < lists; ++list) {
        const int64 of_grad = list == 0 ? 1 + (mix + size) % 7 : 0;
        const int64 ways[] = {0, 5, of_grad, static_cast<int64>(random() % 8)};
        cases[list].emplace_back(kDTypes[random() % 3], size, ways[mix % 4]);
      }
    }
  }
  for (int list = 0; list < lists; ++list) randomise(cases[list], 21 + list);
  return cases;
}

template <class Rule>
constexpr Algorithm kAlgorithm{};
#define TORCHAMP_ALGORITHM(Name, name) \
  template <>                          \
  inline constexpr Algorithm kAlgorithm<torchamp::Name> = Algorithm::k##Name;
TORCHAMP_ALGORITHMS(TORCHAMP_ALGORITHM)
#undef TORCHAMP_ALGORITHM

template <class Rule>
class Step : public testing::Test {
 protected:
  static constexpr int kModel = 2 + Rule::kStates;

  void SetUp() override { cuda::use_driver(driver()); }

  /// compact: with states in bfloat16, which are rounded stochastically.
  static std::vector<TensorList> make(bool tiny, bool compact = true) {
    auto lists = tiny ? tiny_cases(kModel + 1) : step_cases(kModel + 1);
    if (!compact) make_plain(lists);
    for (int list = 2; list < kModel; ++list) {
      for (Tensor& tensor : lists[list]) {
        for (int64 i = 0; i < tensor.count(); ++i) tensor.set(i, std::fabs(tensor[i]));
      }
    }
    return lists;
  }

  static void make_plain(std::vector<TensorList>& lists) {
    for (int list = 2; list < kModel; ++list) {
      for (Tensor& tensor : lists[list]) {
        if (tensor.dtype() == DType::kBFloat16) tensor = retyped(tensor, DType::kFloat32);
      }
      randomise(lists[list], 41 + list);
    }
  }

  /// Every third tensor has no model parameter.
  static bool has_model(std::size_t t) { return t % 3 != 0; }

  static bool is_unscaled(std::size_t t) { return t % 4 == 1; }

  static int32 group_of(std::size_t t) { return static_cast<int32>(t / 2 % 2); }

  static Plan plan_for(const std::vector<TensorList>& lists, bool models) {
    std::vector<const TensorList*> all;
    for (const TensorList& list : lists) all.push_back(&list);
    Plan plan = plan_of(all);
    for (std::size_t t = 0; t < lists[0].size(); ++t) {
      plan.tags.push_back(is_unscaled(t));
      plan.rows.push_back(group_of(t));
      if (models && has_model(t)) continue;
      plan.data[t * lists.size() + kModel] = nullptr;
      plan.dtypes[t * lists.size() + kModel] = DType::kFloat32;
    }
    return plan;
  }

  static std::vector<TensorList> copies(const std::vector<TensorList>& lists) {
    std::vector<TensorList> copies;
    for (const TensorList& list : lists) copies.push_back(copy_of(list));
    return copies;
  }

  /// The inputs of tensor t's step.
  struct Way {
    typename Rule::Coefficients coefficients;
    uint32 key;
    bool has_model;
    bool stochastic_rounding;
  };

  static void set_stochastically(Tensor& tensor, int64 i, float value, const Way& way, int list) {
    const bool stochastic = tensor.dtype() == DType::kBFloat16;
    const uint32 noise = torchamp::noise(way.key, i, list);
    tensor.set(
        i, stochastic ? torchamp::to_float(torchamp::round_stochastically(value, noise)) : value);
  }

  static void set_param(std::vector<TensorList>& lists, std::size_t t, int64 i, float value,
                        const Way& way) {
    Tensor& param = lists[1][t];
    way.stochastic_rounding ? set_stochastically(param, i, value, way, 1) : param.set(i, value);
    if (way.has_model) lists[kModel][t].set(i, value);
  }

  static void step_tensor(std::vector<TensorList>& lists, std::size_t t, const Way& way) {
    for (int64 i = 0; i < lists[0][t].count(); ++i) {
      float states[Rule::kStates + 1];
      for (int s = 0; s < Rule::kStates; ++s) states[s] = lists[2 + s][t][i];
      const float grad = lists[0][t][i], param = lists[1][t][i];
      set_param(lists, t, i, Rule::step(way.coefficients, grad, param, states), way);
      for (int s = 0; s < Rule::kStates; ++s) {
        set_stochastically(lists[2 + s][t], i, states[s], way, 2 + s);
      }
    }
  }

  static void expect_step(std::vector<TensorList>& lists, bool models, Scalars& scalars,
                          cuda::Queue queue = kQueue) {
    auto expected = copies(lists);
    Scalars expected_scalars = scalars;
    const StepInputs inputs = expected_scalars.inputs();
    for (std::size_t t = 0; t < lists[0].size(); ++t) {
      const torchamp::Stepped stepped{static_cast<int32>(scalars.stride * t),
                                      &scalars.rows[group_of(t)], is_unscaled(t)};
      step_tensor(expected, t,
                  {torchamp::coefficients<Rule>(inputs, stepped),
                   torchamp::noise_key<Rule>(inputs, stepped.position), models && has_model(t),
                   scalars.stochastic_rounding});
      torchamp::finish_step<Rule>(inputs, stepped);
    }
    Plan plan = plan_for(lists, models);
    for (std::size_t t = 0; t < lists[0].size(); ++t) {
      plan.positions[t] = static_cast<int32>(scalars.stride * t);
    }
    uint32 ticket = 0;
    cuda::step(queue, kAlgorithm<Rule>, plan, scalars.inputs(), scalars.rows, &ticket);
    EXPECT_EQ(ticket, 0u);
    for (std::size_t list = 0; list < lists.size(); ++list) {
      expect_same(lists[list], expected[list]);
    }
    EXPECT_EQ(scalars.steps, expected_scalars.steps);
    EXPECT_EQ(scalars.norm_averages, expected_scalars.norm_averages);
  }
};

}  // namespace kernel_tests

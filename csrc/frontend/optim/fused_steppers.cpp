#include "frontend/optim/fused_steppers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "frontend/device_grads.h"
#include "frontend/graphed.h"
#include "ops/step_rules.h"

namespace torchamp::optim {
namespace {

using at::Tensor;
using torch::optim::OptimizerOptions;

const char* name_of(const OptimizerOptions& defaults) {
  return static_cast<const FusedOptions&>(defaults).optimizer_name();
}

void check_grads(FusedOptimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (size_t i = 0; i < params.size(); ++i) {
      const Tensor& grad = params[i].grad();
      TORCH_CHECK_TYPE(!grad.defined() || grad.layout() == at::kStrided,
                       name_of(optimizer.defaults()), ": expected the grad of param_groups[", g,
                       "].params()[", i, "] to be dense, got layout ", grad.layout());
    }
  }
}

}  // namespace

FusedOptions& checked_kind(const OptimizerOptions& defaults, OptimizerOptions& options) {
  const char* const name = name_of(defaults);
  TORCH_CHECK_VALUE(typeid(options) == typeid(defaults), name,
                    ": expected the options of its groups to be ", name,
                    "Options, got another optimizer's");
  return static_cast<FusedOptions&>(options);
}

bool FusedSteppers::Place::operator==(const Place& other) const {
  return param.is_same(other.param) && stepped.is_same(other.stepped) && device == other.device &&
         dtype == other.dtype && algorithm == other.algorithm && group == other.group;
}

void FusedSteppers::step(FusedOptimizer& optimizer, const FusedStepper::StepInputs& step) {
  const at::NoGradGuard no_grad;
  update(optimizer);
  TORCH_CHECK(
      !core::have_masters(params_of(optimizer)), name_of(optimizer.defaults()),
      ": expected steps of the torchamp::Optimizer that initialize returned, got one of the "
      "optimizer that it was given; call step() of the one that initialize returned");
  for (Stepper& stepper : steppers_) {
    stepper.core.step(step);
    publish_new(optimizer, stepper);
  }
}

void FusedSteppers::step_masters(FusedOptimizer& optimizer, core::OptimizerState& state) {
  update(optimizer);
  for (Stepper& stepper : steppers_) {
    core::step_by(state, stepper.core, state.overflows().found_inf());
    publish_new(optimizer, stepper);
  }
}

void FusedSteppers::clear() {
  places_.clear();
  steppers_.clear();
}

std::vector<FusedSteppers::Place> FusedSteppers::places_of(FusedOptimizer& optimizer) {
  std::vector<Place> places;
  int64_t group = 0;
  for (auto& each : optimizer.param_groups()) {
    const StepAlgorithm algorithm = checked_kind(optimizer.defaults(), each.options()).algorithm();
    for (const Tensor& param : each.params()) {
      const Tensor stepped = core::stepped_for(param);
      places.push_back({param, stepped, param.device(), stepped.scalar_type(), algorithm, group});
    }
    ++group;
  }
  return places;
}

void FusedSteppers::make(std::vector<Place> rest, const StorageOptions& storage) {
  steppers_.clear();
  while (!rest.empty()) {
    const Place first = rest.front();
    const auto end = std::stable_partition(rest.begin(), rest.end(), [&](const Place& place) {
      return place.algorithm != first.algorithm || place.device != first.device;
    });
    std::vector<Tensor> params, stepped;
    std::vector<int64_t> groups;
    for (auto place = end; place != rest.end(); ++place) {
      params.push_back(place->param);
      stepped.push_back(place->stepped);
      groups.push_back(place->group);
    }
    rest.erase(end, rest.end());
    steppers_.push_back({first.algorithm,
                         std::move(params),
                         {first.algorithm,
                          std::move(stepped),
                          groups,
                          {storage.state_dtype(), storage.stochastic_rounding()}}});
  }
}

/// Checks the grads, and makes the steppers what groups, options and states are now.
void FusedSteppers::update(FusedOptimizer& optimizer) {
  check_grads(optimizer);
  if (!are_current(optimizer)) {
    places_ = places_of(optimizer);
    make(places_, optimizer.storage());
    for (Stepper& stepper : steppers_) {
      for (size_t i = 0; i < stepper.core.params().size(); ++i) adopt(optimizer, stepper, i);
    }
    state_count_ = optimizer.state().size();
  }
  std::vector<FusedStepper::Row> rows;
  for (const auto& group : optimizer.param_groups()) {
    rows.push_back(static_cast<const FusedOptions&>(group.options()).hyper());
  }
  for (Stepper& stepper : steppers_) {
    stepper.core.set_hyper(rows);
    for (size_t group = 0; group < rows.size(); ++group) lend_rate(optimizer, group, stepper.core);
  }
}

bool FusedSteppers::are_current(FusedOptimizer& optimizer) const {
  return places_of(optimizer) == places_ && optimizer.state().size() >= state_count_;
}

void FusedSteppers::adopt(FusedOptimizer& optimizer, Stepper& stepper, size_t i) {
  const auto found = optimizer.state().find(stepper.params[i].unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return;
  const auto& kept = static_cast<const FusedParamState&>(*found->second);
  std::vector<Tensor> states;
  for (const std::string& name : state_names(stepper.algorithm)) states.push_back(kept.get(name));
  const auto is_defined = [](const Tensor& state) { return state.defined(); };
  if (!states.empty() && std::none_of(states.begin(), states.end(), is_defined)) return;
  const Tensor step = kept.get("step");
  stepper.core.set_state(i, states, step.defined() ? step : at::scalar_tensor(1.0f),
                         kept.get("norm_average"));
  publish(optimizer, stepper, i);
}

void FusedSteppers::publish(FusedOptimizer& optimizer, const Stepper& stepper, size_t i) {
  auto& place = optimizer.state()[stepper.params[i].unsafeGetTensorImpl()];
  if (place == nullptr) place = std::make_unique<FusedParamState>();
  auto& state = static_cast<FusedParamState&>(*place);
  state.set("step", stepper.core.step_count(i));
  if (const Tensor norm = stepper.core.norm_average(i); norm.defined()) {
    state.set("norm_average", norm);
  }
  const auto names = state_names(stepper.algorithm);
  const auto states = stepper.core.states(i);
  for (size_t s = 0; s < names.size(); ++s) state.set(names[s], states[s]);
}

void FusedSteppers::publish_new(FusedOptimizer& optimizer, Stepper& stepper) {
  for (const int64_t i : stepper.core.new_states()) {
    publish(optimizer, stepper, static_cast<size_t>(i));
  }
  stepper.core.clear_new_states();
  state_count_ = optimizer.state().size();
}

}  // namespace torchamp::optim

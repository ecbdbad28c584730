#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torchamp/detail/option_specs.h>
#include <torchamp/optim/fused_optimizer.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_set>

namespace torchamp::optim {
namespace {

using at::Tensor;
using torch::optim::OptimizerOptions;

std::unique_ptr<FusedOptions> checked(std::unique_ptr<FusedOptions> options) {
  options->check();
  return options;
}

std::optional<Tensor> on(at::Device device, const std::optional<Tensor>& scalar) {
  if (!scalar) return std::nullopt;
  return scalar->to(device, at::kFloat, /*non_blocking=*/true);
}

}  // namespace

bool FusedOptimizer::Place::operator==(const Place& other) const {
  return param.is_same(other.param) && device == other.device && dtype == other.dtype &&
         algorithm == other.algorithm && group == other.group;
}

FusedOptimizer::FusedOptimizer(const std::vector<Group>& groups,
                               std::unique_ptr<FusedOptions> defaults)
    : Optimizer(std::vector<Group>(), checked(std::move(defaults))) {
  for (const Group& group : groups) add_param_group(group);
}

const char* FusedOptimizer::name() const {
  return static_cast<const FusedOptions&>(defaults()).optimizer_name();
}

FusedOptions& FusedOptimizer::checked_kind(OptimizerOptions& options) const {
  const OptimizerOptions& defaults = this->defaults();
  TORCH_CHECK_VALUE(typeid(options) == typeid(defaults), name(),
                    ": expected the options of its groups to be ", name(),
                    "Options, got another optimizer's");
  return static_cast<FusedOptions&>(options);
}

void FusedOptimizer::check_new_params(const std::vector<Tensor>& params) const {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const Group& group : param_groups_) {
    for (const Tensor& param : group.params()) known.insert(param.unsafeGetTensorImpl());
  }
  for (size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK_TYPE(params[i].defined(), name(), ": expected params[", i,
                     "] to be a tensor, got none");
    TORCH_CHECK_VALUE(known.insert(params[i].unsafeGetTensorImpl()).second, name(),
                      ": expected parameters that are in no group yet, got params[", i,
                      "] of sizes ", params[i].sizes(), " a second time");
  }
}

std::unique_ptr<OptimizerOptions> FusedOptimizer::complete(const Group& group) const {
  if (!group.has_options()) return defaults_->clone();
  auto options = group.options().clone();
  FusedOptions& own = checked_kind(*options);
  own.inherit(static_cast<const FusedOptions&>(*defaults_));
  own.check();
  return options;
}

void FusedOptimizer::add_param_group(const Group& group) {
  check_new_params(group.params());
  auto options = complete(group);
  Optimizer::add_param_group(Group(group.params()));
  param_groups_.back().set_options(std::move(options));
}

Tensor FusedOptimizer::step(LossClosure closure) {
  Tensor loss;
  if (closure) {
    at::AutoGradMode with_grads(true);
    loss = closure();
  }
  step_with({});
  return loss;
}

void FusedOptimizer::step_with(const FusedStepper::Step& step) {
  at::NoGradGuard no_grad;
  check_grads();
  update_steppers();
  for (Stepper& stepper : steppers_) {
    const at::Device device = stepper.core.params().front().device();
    stepper.core.step({on(device, step.grad_factor), on(device, step.skip)});
    publish_new(stepper);
  }
}

void FusedOptimizer::step_masters(core::OptimizerState& state) {
  check_grads();
  update_steppers();
  for (Stepper& stepper : steppers_) {
    state.step(stepper.core, state.found_inf());
    publish_new(stepper);
  }
}

void FusedOptimizer::check_grads() const {
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& params = param_groups_[g].params();
    for (size_t i = 0; i < params.size(); ++i) {
      const Tensor& grad = params[i].grad();
      TORCH_CHECK_TYPE(!grad.defined() || grad.layout() == at::kStrided, name(),
                       ": expected the grad of param_groups[", g, "].params()[", i,
                       "] to be dense, got layout ", grad.layout());
    }
  }
}

std::vector<FusedOptimizer::Place> FusedOptimizer::places() {
  std::vector<Place> places;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const StepAlgorithm algorithm = checked_kind(param_groups_[g].options()).algorithm();
    for (const Tensor& param : param_groups_[g].params()) {
      places.push_back(
          {param, param.device(), param.scalar_type(), algorithm, static_cast<int64_t>(g)});
    }
  }
  return places;
}

void FusedOptimizer::make_steppers(const std::vector<Place>& places) {
  std::vector<Place> rest = places;
  steppers_.clear();
  while (!rest.empty()) {
    const Place first = rest.front();
    const auto end = std::stable_partition(rest.begin(), rest.end(), [&](const Place& place) {
      return place.algorithm != first.algorithm || place.device != first.device;
    });
    std::vector<Tensor> params;
    std::vector<int64_t> groups;
    for (auto place = end; place != rest.end(); ++place) {
      params.push_back(place->param);
      groups.push_back(place->group);
    }
    rest.erase(end, rest.end());
    steppers_.push_back({first.algorithm,
                         {first.algorithm,
                          std::move(params),
                          groups,
                          {storage_.state_dtype(), storage_.stochastic_rounding()}}});
  }
}

void FusedOptimizer::adopt(Stepper& stepper, size_t i) {
  const auto found = state_.find(stepper.core.params()[i].unsafeGetTensorImpl());
  if (found == state_.end()) return;
  const auto& kept = static_cast<const FusedParamState&>(*found->second);
  std::vector<Tensor> states;
  for (const std::string& name : state_names(stepper.algorithm)) states.push_back(kept.get(name));
  const auto is_defined = [](const Tensor& state) { return state.defined(); };
  if (!states.empty() && std::none_of(states.begin(), states.end(), is_defined)) return;
  const Tensor step = kept.get("step");
  stepper.core.set_state(i, states, step.defined() ? step : at::scalar_tensor(1.0f),
                         kept.get("norm_average"));
  publish(stepper, i);
}

void FusedOptimizer::publish(const Stepper& stepper, size_t i) {
  auto& place = state_[stepper.core.params()[i].unsafeGetTensorImpl()];
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

void FusedOptimizer::set_storage(StorageOptions storage) {
  storage_ = storage;
  forget_steppers();
}

void FusedOptimizer::forget_steppers() {
  places_.clear();
  steppers_.clear();
}

void FusedOptimizer::update_steppers() {
  auto now = places();
  if (now != places_) {
    make_steppers(now);
    places_ = std::move(now);
    for (Stepper& stepper : steppers_) {
      for (size_t i = 0; i < stepper.core.params().size(); ++i) adopt(stepper, i);
    }
  }
  std::vector<FusedStepper::Row> rows;
  for (const Group& group : param_groups_) {
    rows.push_back(static_cast<const FusedOptions&>(group.options()).hyper());
  }
  for (Stepper& stepper : steppers_) stepper.core.set_hyper(rows);
}

void FusedOptimizer::publish_new(Stepper& stepper) {
  for (const int64_t i : stepper.core.new_states()) publish(stepper, static_cast<size_t>(i));
  stepper.core.clear_new_states();
}

}  // namespace torchamp::optim

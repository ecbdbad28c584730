#include "frontend/checkpoint/kinds.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "frontend/optim/fused_steppers.h"
#include "frontend/optim/option_specs.h"

namespace torchamp::checkpoint {

using at::Tensor;
using c10::IValue;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

namespace {

using FusedOptimizer = optim::FusedOptimizer;
using FusedOptions = optim::FusedOptions;
using FusedParamState = optim::FusedParamState;
using Fields = std::vector<Field>;

/// A state of the parameter's sizes, on its device.
Tensor fitting(const Tensor& state, const Tensor& param, at::ScalarType dtype,
               const std::string& what) {
  TORCH_CHECK(state.is_floating_point(), "amp::load: expected \"", what,
              "\" of the checkpoint to be a floating-point tensor, got ", state.scalar_type());
  TORCH_CHECK(state.sizes() == param.sizes(), "amp::load: expected \"", what,
              "\" of the checkpoint to have its parameter's sizes, ", param.sizes(), ", got ",
              state.sizes());
  return state.to(param.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
}

Fields fields_of(torch::optim::SGDOptions& options) {
  return {{"lr", &options.lr()},
          {"momentum", &options.momentum()},
          {"dampening", &options.dampening()},
          {"weight_decay", &options.weight_decay()},
          {"nesterov", &options.nesterov()}};
}
Fields fields_of(torch::optim::SGDParamState& state) {
  return {{"momentum_buffer", &state.momentum_buffer(), true}};
}

/// Adam's and AdamW's.
template <class AdamOptions>
auto fields_of(AdamOptions& options) -> decltype(options.amsgrad(), Fields()) {
  return {{"lr", &options.lr()},
          {"betas", &options.betas()},
          {"eps", &options.eps()},
          {"weight_decay", &options.weight_decay()},
          {"amsgrad", &options.amsgrad()}};
}
template <class AdamState>
auto fields_of(AdamState& state) -> decltype(state.max_exp_avg_sq(), Fields()) {
  return {{"step", &state.step()},
          {"exp_avg", &state.exp_avg()},
          {"exp_avg_sq", &state.exp_avg_sq()},
          {"max_exp_avg_sq", &state.max_exp_avg_sq(), true}};
}
Fields fields_of(torch::optim::AdagradOptions& options) {
  return {{"lr", &options.lr()},
          {"lr_decay", &options.lr_decay()},
          {"weight_decay", &options.weight_decay()},
          {"eps", &options.eps()},
          {"initial_accumulator_value", &options.initial_accumulator_value(), true}};
}
Fields fields_of(torch::optim::AdagradParamState& state) {
  return {{"step", &state.step()}, {"sum", &state.sum()}};
}

Fields fields_of(torch::optim::RMSpropOptions& options) {
  return {{"lr", &options.lr()},
          {"alpha", &options.alpha()},
          {"eps", &options.eps()},
          {"weight_decay", &options.weight_decay()},
          {"momentum", &options.momentum()},
          {"centered", &options.centered()}};
}
Fields fields_of(torch::optim::RMSpropParamState& state) {
  return {{"step", &state.step()},
          {"square_avg", &state.square_avg()},
          {"momentum_buffer", &state.momentum_buffer(), true},
          {"grad_avg", &state.grad_avg(), true}};
}

template <class Options, class State>
class LibTorchKind : public Kind {
  template <class S, class = void>
  struct Counts : std::false_type {};
  template <class S>
  struct Counts<S, std::void_t<decltype(std::declval<S&>().step())>> : std::true_type {};

 public:
  LibTorchKind(const char* name, std::vector<FixedOption> fixed)
      : name_(name), fixed_(std::move(fixed)) {}

  std::string name(const Optimizer&) const override { return name_; }
  std::vector<FixedOption> fixed_options() const override { return fixed_; }
  Fields fields(OptimizerOptions& options) const override {
    return fields_of(static_cast<Options&>(options));
  }

  Tree saved(const OptimizerParamState& state) const override {
    State copy = static_cast<const State&>(state);
    Tree tree = new_tree();
    for (const Field& field : fields_of(copy)) {
      const IValue value = saved_field(field);
      if (!value.isNone()) tree.insert(field.name, value);
    }
    return tree;
  }

  std::unique_ptr<OptimizerParamState> read_state(const Tree& saved, const StateOwner& owner,
                                                  const std::string& what) const override {
    auto state = std::make_unique<State>();
    State old = owner.old_state ? static_cast<const State&>(*owner.old_state) : State();
    const Fields fields = fields_of(*state), old_fields = fields_of(old);
    for (size_t i = 0; i < fields.size(); ++i) {
      const Field& field = fields[i];
      if (field.may_be_absent && !saved.contains(field.name)) continue;
      const std::string name = what + "." + field.name;
      read_field(field, take(saved, field.name), name);
      if (auto* const* tensor = std::get_if<Tensor*>(&field.value)) {
        const Tensor& before = *std::get<Tensor*>(old_fields[i].value);
        const Tensor& like = before.defined() ? before : owner.param;
        **tensor = fitting(**tensor, owner.param, like.scalar_type(), name);
      }
    }
    return state;
  }

  std::optional<int64_t> count_of_steps(Optimizer& optimizer) const override {
    if constexpr (Counts<State>::value) {
      int64_t count = 0;
      for (const auto& [key, state] : optimizer.state()) {
        count += static_cast<const State&>(*state).step();
      }
      return count;
    } else {
      return std::nullopt;
    }
  }

  void widen(OptimizerParamState& state) const override {
    for (const Field& field : fields_of(static_cast<State&>(state))) {
      auto* const* tensor = std::get_if<Tensor*>(&field.value);
      const bool is_narrow = tensor != nullptr && (*tensor)->defined() &&
                             at::isReducedFloatingType((*tensor)->scalar_type());
      if (is_narrow) **tensor = (*tensor)->to(at::kFloat);
    }
  }

 private:
  std::string name_;
  std::vector<FixedOption> fixed_;
};

class FusedKind : public Kind {
 public:
  std::string name(const Optimizer& optimizer) const override {
    const auto& defaults = static_cast<const FusedOptions&>(optimizer.defaults());
    return std::string(defaults.optimizer_name()).substr(std::string("Fused").size());
  }

  Fields fields(OptimizerOptions& options) const override {
    Fields fields;
    for (const optim::OptionField& each : static_cast<FusedOptions&>(options).fields()) {
      std::visit(
          [&](auto* option) {
            fields.push_back({each.name, &option->value, each.ours_alone});
          },
          each.option);
    }
    return fields;
  }

  void check(const OptimizerOptions& options) const override {
    static_cast<const FusedOptions&>(options).check();
  }

  Tree saved(const OptimizerParamState& state) const override {
    Tree tree = new_tree();
    for (const auto& [name, tensor] : static_cast<const FusedParamState&>(state).tensors()) {
      tree.insert(name, tensor.detach());
    }
    return tree;
  }

  std::unique_ptr<OptimizerParamState> read_state(const Tree& saved, const StateOwner& owner,
                                                  const std::string& what) const override {
    const auto algorithm = static_cast<const FusedOptions&>(owner.options).algorithm();
    for (const std::string& name : optim::required_states(algorithm)) take(saved, name);
    auto state = std::make_unique<FusedParamState>();
    for (const auto& entry : saved) {
      const std::string name = as_text(entry.key(), what), full = what + "." + name;
      if (FusedParamState::is_scalar(name)) {
        state->set(name, at::scalar_tensor(as_double(entry.value(), full), at::kFloat));
      } else {
        const Tensor value = as_tensor(entry.value(), full);
        state->set(name, fitting(value, owner.param, value.scalar_type(), full));
      }
    }
    return state;
  }

  void states_were_set(Optimizer& optimizer) const override {
    static_cast<FusedOptimizer&>(optimizer).steppers()->clear();
  }
};

}  // namespace

const Kind* kind_of(const Optimizer& optimizer) {
  namespace lib = torch::optim;
  constexpr FixedOption no_maximize{"maximize", false}, decoupled{"decoupled_weight_decay", true},
      coupled{"decoupled_weight_decay", false}, corrected{"bias_correction", true};
  static const auto* const sgd = new LibTorchKind<lib::SGDOptions, lib::SGDParamState>(
      "SGD", {no_maximize, {"decay_after_momentum", false}});
  static const auto* const adam = new LibTorchKind<lib::AdamOptions, lib::AdamParamState>(
      "Adam", {no_maximize, coupled, corrected});
  static const auto* const adamw = new LibTorchKind<lib::AdamWOptions, lib::AdamWParamState>(
      "AdamW", {no_maximize, decoupled, corrected});
  static const auto* const adagrad = new LibTorchKind<lib::AdagradOptions, lib::AdagradParamState>(
      "Adagrad", {no_maximize, coupled});
  static const auto* const rmsprop =
      new LibTorchKind<lib::RMSpropOptions, lib::RMSpropParamState>("RMSprop", {no_maximize});
  static const auto* const fused = new FusedKind;
  if (dynamic_cast<const FusedOptimizer*>(&optimizer)) return fused;
  if (dynamic_cast<const lib::SGD*>(&optimizer)) return sgd;
  if (dynamic_cast<const lib::Adam*>(&optimizer)) return adam;
  if (dynamic_cast<const lib::AdamW*>(&optimizer)) return adamw;
  if (dynamic_cast<const lib::Adagrad*>(&optimizer)) return adagrad;
  if (dynamic_cast<const lib::RMSprop*>(&optimizer)) return rmsprop;
  return nullptr;
}

}  // namespace torchamp::checkpoint

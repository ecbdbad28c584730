#include "frontend/checkpoint/optimizer.h"

#include "core/param.h"
#include "frontend/checkpoint/kinds.h"

namespace torchamp::checkpoint {

using at::Tensor;
using c10::IValue;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

namespace {

std::string indexed(const std::string& name, const char* list, size_t i) {
  return name + "." + list + "[" + std::to_string(i) + "]";
}

const Kind& checked_kind_of(const Optimizer& optimizer, const std::string& name) {
  const Kind* kind = kind_of(optimizer);
  TORCH_CHECK(kind != nullptr, "amp::save: expected ", name,
              " to be LibTorch's SGD, Adam, AdamW, Adagrad or RMSprop, or a torchamp "
              "optimizer that Python supports, got an unsupported class");
  return *kind;
}

void check_size(const std::string& name, const char* what, size_t expected, size_t got) {
  TORCH_CHECK(expected == got, "amp::load: expected ", name, " of the checkpoint to have ",
              expected, " ", what, ", got ", got);
}

/// Entries that are None in Python are omitted.
Tree without_none(const Tree& tree) {
  Tree kept = new_tree();
  for (const auto& entry : tree) {
    if (!entry.value().isNone()) kept.insert(entry.key(), entry.value());
  }
  return kept;
}

Tree saved_group(const Kind& kind, const OptimizerParamGroup& group, int64_t first_param) {
  const auto options = group.options().clone();
  Tree tree = new_tree();
  for (const FixedOption& fixed : kind.fixed_options()) tree.insert(fixed.name, fixed.value);
  for (const Field& field : kind.fields(*options)) tree.insert(field.name, saved_field(field));
  std::vector<IValue> params;
  for (size_t i = 0; i < group.params().size(); ++i) {
    params.emplace_back(first_param + static_cast<int64_t>(i));
  }
  tree.insert("params", list_of(params));
  return tree;
}

void check_fixed(const FixedOption& fixed, const Tree& saved, const std::string& name) {
  if (!saved.contains(fixed.name)) return;
  const bool got = as_double(saved.at(fixed.name), name + "." + fixed.name) != 0.0;
  TORCH_CHECK(
      got == fixed.value, "amp::load: expected ", fixed.name, " of ", name,
      " in the checkpoint to be ", fixed.value ? "true" : "false",
      ", because LibTorch's optimizer does not support it; FusedSGD, FusedAdam and FusedAdamW do");
}

std::unique_ptr<OptimizerOptions> read_options(const Kind& kind, const Tree& saved,
                                               const OptimizerParamGroup& group,
                                               const std::string& name) {
  auto options = group.options().clone();
  for (const FixedOption& fixed : kind.fixed_options()) check_fixed(fixed, saved, name);
  for (const Field& field : kind.fields(*options)) {
    if (field.may_be_absent && !saved.contains(field.name)) continue;
    read_field(field, take(saved, field.name), name + "." + field.name);
  }
  kind.check(*options);
  return options;
}

}  // namespace

Tree saved_optimizer(const Optimizer& optimizer, const std::string& name) {
  const Kind& kind = checked_kind_of(optimizer, name);
  std::vector<IValue> groups;
  Tree states = new_tree();
  int64_t index = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    groups.emplace_back(saved_group(kind, group, index));
    for (const Tensor& param : group.params()) {
      const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) states.insert(index, kind.saved(*found->second));
      ++index;
    }
  }
  Tree tree = new_tree();
  tree.insert("kind", kind.name(optimizer));
  tree.insert("param_groups", list_of(groups));
  tree.insert("state", states);
  return tree;
}

LoadedOptimizer::LoadedOptimizer(Optimizer& optimizer, const Tree& saved, const std::string& name)
    : optimizer_(optimizer) {
  const std::string expected = checked_kind_of(optimizer, name).name(optimizer);
  const std::string kind = as_text(take(saved, "kind"), name + ".kind");
  TORCH_CHECK(kind == expected, "amp::load: expected ", name, " of the checkpoint to be of kind ",
              expected, ", got ", kind);
  const auto groups = as_list(take(saved, "param_groups"), name + ".param_groups");
  const Tree states = as_tree(take(saved, "state"), name + ".state");
  check_size(name, "param_groups", optimizer.param_groups().size(), groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string group = indexed(name, "param_groups", g);
    read_group(as_tree(groups[g], group), optimizer.param_groups()[g], states, group);
  }
}

void LoadedOptimizer::read_group(const Tree& saved, const OptimizerParamGroup& group,
                                 const Tree& states, const std::string& name) {
  const Kind& kind = *kind_of(optimizer_);
  options_.push_back(read_options(kind, saved, group, name));
  const auto keys = as_list(take(saved, "params"), name + ".params");
  check_size(name, "params", group.params().size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string param = indexed(name, "params", i);
    const auto found = states.find(as_int(keys[i], param));
    const Tree state =
        found == states.end() ? new_tree() : without_none(as_tree(found->value(), param));
    const auto old = optimizer_.state().find(group.params()[i].unsafeGetTensorImpl());
    const Tensor stepped = core::stepped_for(group.params()[i]);
    const StateOwner owner{stepped, *options_.back(),
                           old == optimizer_.state().end() ? nullptr : old->second.get()};
    states_.push_back(state.empty() ? nullptr : kind.read_state(state, owner, param));
  }
}

void LoadedOptimizer::apply() {
  optimizer_.state().clear();
  auto& groups = optimizer_.param_groups();
  size_t next = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].set_options(std::move(options_[g]));
    for (const Tensor& param : groups[g].params()) {
      auto& state = states_[next++];
      if (state) optimizer_.state()[param.unsafeGetTensorImpl()] = std::move(state);
    }
  }
  kind_of(optimizer_)->states_were_set(optimizer_);
}

}  // namespace torchamp::checkpoint

// FusedOptimizer's files, which are LibTorch's: optim/serialize.h.

#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>
#include <torchamp/optim/fused_optimizer.h>

#include <string>

#include "frontend/optim/fused_steppers.h"

namespace torchamp::optim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

template <class T>
T take(const char* optimizer, InputArchive& archive, const std::string& key) {
  T value;
  TORCH_CHECK_VALUE(archive.try_read(key, value), optimizer, ": expected the file to contain \"",
                    key, "\", but it is missing: the file is damaged, or not an optimizer's");
  return value;
}

int64_t take_size(const char* optimizer, InputArchive& archive, const std::string& key) {
  return take<Tensor>(optimizer, archive, key).item<int64_t>();
}

void check_size(const char* optimizer, const std::string& what, size_t expected, int64_t got) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(expected) == got, optimizer, ": expected a file of ",
                    expected, " ", what, ", got ", got);
}

/// The saved state under `key`; null if the parameter had none.
std::unique_ptr<FusedParamState> read_state(InputArchive& archive, const std::string& key) {
  InputArchive saved;
  if (!archive.try_read(key, saved)) return nullptr;
  auto state = std::make_unique<FusedParamState>();
  state->serialize(saved);
  return state;
}

void check_state(const char* optimizer, const FusedParamState& state, const Tensor& param) {
  for (const auto& [name, tensor] : state.tensors()) {
    TORCH_CHECK_VALUE(FusedParamState::is_scalar(name) || tensor.sizes() == param.sizes(),
                      optimizer, ": expected the file's \"", name,
                      "\" to have the sizes of its parameter, ", param.sizes(), ", got ",
                      tensor.sizes());
  }
}

/// A file's entries for a group.
struct LoadedGroup {
  std::unique_ptr<OptimizerOptions> options;
  std::vector<std::unique_ptr<FusedParamState>> states;  ///< null where a parameter had none
};

std::unique_ptr<OptimizerOptions> read_options(const OptimizerParamGroup& group,
                                               InputArchive archive) {
  auto options = group.options().clone();
  options->serialize(archive);
  static_cast<const FusedOptions&>(*options).check();
  return options;
}

LoadedGroup read_group(const char* optimizer, const OptimizerParamGroup& group,
                       InputArchive archive, InputArchive& states) {
  const auto& params = group.params();
  check_size(optimizer, "params in a group", params.size(),
             take_size(optimizer, archive, "params/size"));
  LoadedGroup loaded{read_options(group, take<InputArchive>(optimizer, archive, "options")), {}};
  for (size_t i = 0; i < params.size(); ++i) {
    const auto key = take<IValue>(optimizer, archive, "params/" + std::to_string(i));
    loaded.states.push_back(read_state(states, key.toStringRef()));
    if (loaded.states.back()) check_state(optimizer, *loaded.states.back(), params[i]);
  }
  return loaded;
}

}  // namespace

void FusedOptimizer::save(OutputArchive& archive) const {
  torch::optim::serialize<FusedParamState, OptimizerOptions>(archive, *this);
}

void FusedOptimizer::load(InputArchive& archive) {
  auto states = take<InputArchive>(name(), archive, "state");
  auto groups = take<InputArchive>(name(), archive, "param_groups");
  check_size(name(), "param_groups", param_groups_.size(),
             take_size(name(), groups, "param_groups/size"));
  std::vector<LoadedGroup> loaded;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    auto group = take<InputArchive>(name(), groups, "param_groups/" + std::to_string(g));
    loaded.push_back(read_group(name(), param_groups_[g], std::move(group), states));
  }
  state_.clear();
  steppers_->clear();
  for (size_t g = 0; g < loaded.size(); ++g) {
    param_groups_[g].set_options(std::move(loaded[g].options));
    const auto& params = param_groups_[g].params();
    for (size_t i = 0; i < params.size(); ++i) {
      if (!loaded[g].states[i]) continue;
      state_[params[i].unsafeGetTensorImpl()] = std::move(loaded[g].states[i]);
    }
  }
}

}  // namespace torchamp::optim

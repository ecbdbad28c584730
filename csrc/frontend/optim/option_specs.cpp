#include "frontend/optim/option_specs.h"

#include <torchamp/optim/adam.h>
#include <torchamp/optim/lamb.h>
#include <torchamp/optim/novograd.h>
#include <torchamp/optim/sgd.h>

#include <algorithm>
#include <memory>

#include "frontend/optim/columns.h"
#include "ops/step_rules.h"

namespace torchamp::optim {
namespace {

std::vector<std::unique_ptr<FusedOptions>> all_options() {
  std::vector<std::unique_ptr<FusedOptions>> all;
  all.push_back(std::make_unique<FusedAdamOptions>());
  all.push_back(std::make_unique<FusedAdamWOptions>());
  all.push_back(std::make_unique<FusedSGDOptions>());
  all.push_back(std::make_unique<FusedNovoGradOptions>());
  all.push_back(std::make_unique<FusedLAMBOptions>());
  return all;
}

std::vector<double> columns_of(const OptionField& field) {
  std::vector<double> columns(2);
  double* const end =
      std::visit([&](auto* option) { return put(option->value, columns.data()); }, field.option);
  columns.resize(end - columns.data());
  return columns;
}

}  // namespace

std::vector<OptionSpec> option_specs(const std::string& optimizer) {
  std::vector<OptionSpec> specs;
  for (const auto& options : all_options()) {
    if (options->optimizer_name() != optimizer) continue;
    for (const OptionField& field : options->fields()) {
      specs.push_back({field.name, columns_of(field), field.minimum, field.ours_alone});
    }
  }
  TORCH_CHECK_VALUE(!specs.empty(), "option_specs: expected a fused optimizer, got ", optimizer);
  return specs;
}

std::vector<std::string> required_states(StepAlgorithm algorithm) {
  auto names = state_names(algorithm);
  names.erase(std::remove(names.begin(), names.end(), "momentum_buffer"), names.end());
  if (!names.empty()) names.emplace_back("step");
  if (rule_of(algorithm).averages) names.emplace_back("norm_average");
  return names;
}

}  // namespace torchamp::optim

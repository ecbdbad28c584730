#include <torchamp/optim/fused_optimizer.h>

#include <unordered_set>

#include "frontend/optim/fused_steppers.h"

namespace torchamp::optim {
namespace {

using at::Tensor;
using torch::optim::OptimizerOptions;

std::unique_ptr<FusedOptions> checked(std::unique_ptr<FusedOptions> options) {
  options->check();
  return options;
}

}  // namespace

FusedOptimizer::FusedOptimizer(const std::vector<Group>& groups,
                               std::unique_ptr<FusedOptions> defaults)
    : Optimizer(std::vector<Group>(), checked(std::move(defaults))),
      steppers_(std::make_shared<FusedSteppers>()) {
  for (const Group& group : groups) add_param_group(group);
}

const char* FusedOptimizer::name() const {
  return static_cast<const FusedOptions&>(defaults()).optimizer_name();
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
  FusedOptions& own = checked_kind(*defaults_, *options);
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
  if (steppers_ != nullptr) steppers_->step(*this, {});
  return loss;
}

void FusedOptimizer::set_storage(StorageOptions storage) {
  storage_ = storage;
  steppers_->clear();
}

}  // namespace torchamp::optim

#include "frontend/wrapped_optimizer.h"

#include <algorithm>
#include <utility>

#include "frontend/checkpoint/kinds.h"
#include "frontend/lifetime.h"
#include "telemetry/late_report.h"

namespace torchamp {
namespace {

/// Whether the program has written parameters since their masters last followed.
bool are_written(const core::OptimizerState& state) {
  const auto& params = state.params();
  return std::any_of(params.begin(), params.end(),
                     [](const auto& param) { return param->is_model_written(); });
}

}  // namespace

bool WrappedOptimizer::is_alive() const {
  if (wrapped == nullptr || life.expired()) return false;
  if (state->params().empty() || !wrapped->param_groups().empty()) return true;
  return !was_moved_from(*wrapped);
}

WrappedOptimizer::WrappedOptimizer(torch::optim::Optimizer& optimizer,
                                   std::shared_ptr<core::Masters> masters)
    : wrapped(&optimizer),
      life(lifetime_of(optimizer)),
      fused(dynamic_cast<optim::FusedOptimizer*>(&optimizer)),
      report(std::make_shared<LateReport>()) {
  state = std::make_shared<core::OptimizerState>(std::move(masters), report);
}

bool WrappedOptimizer::is_current() const {
  size_t i = 0;
  for (const auto& group : wrapped->param_groups()) {
    for (const at::Tensor& param : group.params()) {
      if (!state->steps_at(i++, param)) return false;
    }
  }
  return i == state->params().size();
}

void WrappedOptimizer::note_count() {
  const checkpoint::Kind* const kind = checkpoint::kind_of(*wrapped);
  own_steps.count = kind == nullptr ? std::nullopt : kind->count_of_steps(*wrapped);
  const auto& states = wrapped->state();
  const bool has_some = own_steps.count && !states.empty();
  own_steps.param = has_some ? states.begin()->first : nullptr;
  own_steps.state = has_some ? states.begin()->second.get() : nullptr;
}

bool WrappedOptimizer::has_other_states() const {
  if (own_steps.param == nullptr) return own_steps.backwards == 0;
  const auto found = wrapped->state().find(own_steps.param);
  return found == wrapped->state().end() || found->second.get() != own_steps.state;
}

void WrappedOptimizer::check_own_steps() {
  const checkpoint::Kind* const kind = checkpoint::kind_of(*wrapped);
  if (kind == nullptr || !own_steps.count || fused != nullptr) return;
  const auto count = kind->count_of_steps(*wrapped);
  if (count == own_steps.count) return;
  if (count < own_steps.count || has_other_states()) return note_count();
  TORCH_CHECK(
      !are_written(*state),
      "amp: expected steps of the torchamp::Optimizer that initialize returned, got one of "
      "the torch::optim::Optimizer that it was given, which has stepped the 16-bit "
      "parameters; call step() of the one that initialize returned. The float32 masters are "
      "as they were before that step");
}

void WrappedOptimizer::note_writes() {
  const bool is_between = !own_steps.has_stepped && own_steps.backwards > 0;
  if (is_between && are_written(*state)) own_steps.has_writes = true;
}

void WrappedOptimizer::widen_states() const {
  const checkpoint::Kind* const kind = checkpoint::kind_of(*wrapped);
  if (kind == nullptr || fused != nullptr) return;
  for (const auto& param : state->params()) {
    if (!param->has_master()) continue;
    const auto found = wrapped->state().find(param->model.unsafeGetTensorImpl());
    if (found != wrapped->state().end()) kind->widen(*found->second);
  }
}

bool WrappedOptimizer::has_unknown_states() const {
  const bool has_some = checkpoint::kind_of(*wrapped) == nullptr && !wrapped->state().empty();
  return has_some && core::has_masters(state->params());
}

}  // namespace torchamp

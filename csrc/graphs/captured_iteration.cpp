#include "graphs/captured_iteration.h"

#include <algorithm>
#include <utility>

namespace torchamp {
namespace {

using at::Tensor;
using core::Param;

constexpr const char* kOtherOptimizers =
    "graphed: expected a function that steps the same optimizers in each call with arguments of "
    "one "
    "form, got one that does not; give it an argument that says which";

/// Assigning a grad costs, and the same one is there after most replays.
void set_grad(const Tensor& tensor, const Tensor& grad) {
  if (!tensor.grad().is_same(grad)) tensor.mutable_grad() = grad;
}

}  // namespace

CapturedIteration::CapturedIteration(std::vector<Stepped> optimizers) {
  for (Stepped& each : optimizers) {
    Entry& entry = entries_.emplace_back(Entry{std::move(each), {}, {}, false});
    entry.optimizer.report->take_captured();
    for (const std::shared_ptr<Param>& param : entry.optimizer.state->params()) {
      const Tensor &model = param->model, &master = param->master;
      entry.places.push_back({param,
                              model.const_data_ptr(),
                              master.const_data_ptr(),
                              model.requires_grad(),
                              model.grad(),
                              master.grad(),
                              {},
                              {}});
      had_grads_ |= model.grad().defined();
    }
  }
  bring_together();
}

void CapturedIteration::cancel() {
  reports_.reset();
  for (const Entry& entry : entries_) {
    entry.optimizer.report->take_captured();
    entry.optimizer.state->clear_overflows();
    for (const Place& place : entry.places) {
      set_grad(place.param->model, place.before);
      set_grad(place.param->master, place.master_before);
    }
  }
}

void CapturedIteration::bring_together() const {
  for (const Entry& entry : entries_) {
    const core::OptimizerState& state = *entry.optimizer.state;
    state.masters().bring_together(state.params());
  }
}

void CapturedIteration::note_step(const core::OptimizerState& state) {
  const auto is_it = [&](const Entry& each) { return each.optimizer.state.get() == &state; };
  const auto entry = std::find_if(entries_.begin(), entries_.end(), is_it);
  TORCH_CHECK(entry != entries_.end(), kOtherOptimizers);
  entry->has_stepped = true;
  const auto is_old = [](const Place& place) {
    return place.before.defined() && place.before.is_same(place.param->model.grad());
  };
  TORCH_CHECK(
      std::none_of(entry->places.begin(), entry->places.end(), is_old),
      "graphed: expected a function that begins with zero_grad() and ends with step(), got a "
      "step by a grad of an earlier call; give one call all micro-batches of its step, and "
      "let zero_grad() drop the grads, as it does by default");
}

void CapturedIteration::end() {
  const auto has_stepped = [](const Entry& each) { return each.has_stepped; };
  TORCH_CHECK(std::all_of(entries_.begin(), entries_.end(), has_stepped), kOtherOptimizers);
  bring_together();
  for (Entry& entry : entries_) {
    for (Place& place : entry.places) {
      place.after = place.param->model.grad();
      place.master_after = place.param->master.grad();
    }
    entry.steps = entry.optimizer.report->take_captured();
  }
  reports_.reset();
}

bool CapturedIteration::is_current() const {
  const auto is_still = [this](const Place& place, const std::shared_ptr<Param>& param) {
    const Tensor& model = param->model;
    return place.param == param && place.model_data == model.const_data_ptr() &&
           place.master_data == param->master.const_data_ptr() &&
           place.requires_grad == model.requires_grad() && (had_grads_ || !model.grad().defined());
  };
  return std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const core::ParamList& params = entry.optimizer.state->params();
    return std::equal(entry.places.begin(), entry.places.end(), params.begin(), params.end(),
                      is_still);
  });
}

void CapturedIteration::before_replay() const {
  bring_together();
}

void CapturedIteration::after_replay() {
  for (Entry& entry : entries_) {
    entry.optimizer.report->after_replay(entry.steps);
    for (Place& place : entry.places) {
      place.before = place.master_before = Tensor();  // no more needed, and large
      set_grad(place.param->model, place.after);
      set_grad(place.param->master, place.master_after);
    }
  }
}

}  // namespace torchamp

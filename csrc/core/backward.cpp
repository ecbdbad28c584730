#include "core/backward.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <utility>

#include "scaler/ranks.h"

namespace torchamp::core {

using at::Tensor;

Backward::Backward(const States& states, LossScaler& scaler, BackwardOptions options)
    : scaler_(scaler), options_(options), is_needed_(is_needed(states, scaler)) {
  for (const auto& state : states) {
    const bool is_known = std::find(states_.begin(), states_.end(), state) != states_.end();
    if (!is_known) states_.push_back(state);
  }
  check_apart();
}

Backward::~Backward() {
  cancel();
  if (use_ != nullptr) use_->has_ended = true;
}

bool Backward::is_needed(const States& states, const LossScaler& scaler) {
  return !scaler.is_identity() || std::any_of(states.begin(), states.end(), [](const auto& state) {
    return has_masters(state->params()) || state->grads().are_scaled();
  });
}

Tensor Backward::scale(const Tensor& loss) {
  if (scaled_by_ == nullptr) scaled_by_ = scaler_.snapshot();
  const Tensor scaled_loss = scaler_.scale(loss, *scaled_by_);
  const bool is_plain = !scaled_loss.key_set().has(c10::DispatchKey::Python);
  const bool is_scalar = scaled_loss.numel() == 1 && scaled_loss.device() == scaler_.device();
  if (is_plain && is_scalar) loss_ = scaled_loss.detach();
  if (scaled_loss.requires_grad() && !scaler_.is_identity()) {
    use_ = std::make_shared<Use>();
    scaled_loss.register_hook([use = use_](const Tensor&) { note_use(*use); });
  }
  return scaled_loss;
}

void Backward::note_use(Use& use) {
  TORCH_CHECK(!use.has_ended,
              "scale_loss: expected the backward of the scaled loss before the end of its "
              "scale_loss, which unscales the grads, got one after it; call scaled_loss.backward() "
              "inside");
  use.was_used = true;
}

void Backward::prepare() {
  open(/*takes_grads=*/false);
}

void Backward::take_grads() {
  for (const auto& state : states_) {
    TORCH_CHECK(!state->grads().are_finished(),
                "finish: expected grads of backwards since the last finish, got some that it has "
                "unscaled; call the optimizer's zero_grad() before the backwards of a step");
  }
  open(/*takes_grads=*/true);
}

void Backward::check_apart() const {
  for (size_t i = 0; i < states_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      for (const auto& param : states_[i]->params()) {
        TORCH_CHECK_VALUE(param->users.size() < 2 || !states_[j]->steps(*param),
                          "scale_loss: expected optimizers that share no parameter, got one of "
                          "sizes ",
                          param->model.sizes(), " in optimizers[", j, "] and optimizers[", i,
                          "]; make one optimizer with two groups, or give a scale_loss only the "
                          "optimizer that steps next");
      }
    }
  }
}

void Backward::open(bool takes_grads) {
  if (!is_needed_) return;
  for (const auto& state : states_) {
    TORCH_CHECK(!state->is_in_backward() && !state->grads().are_open(),
                "scale_loss: expected the optimizer not to be inside an open scale_loss, but it "
                "is; close that scale_loss first, or scale the sum of the losses");
  }
  if (!options_.delay_unscale) scaler_.compare_ranks();
  for (const auto& state : states_) check_and_publish(state->params());
  if (scaled_by_ == nullptr) scaled_by_ = scaler_.snapshot();
  for (const auto& state : states_) state->set_in_backward(true);
  is_open_ = true;
  try {
    for (const auto& state : states_) state->update_grads();
    unscale_others();
    for (const auto& state : states_) {
      takes_grads ? state->grads().take() : state->grads().open();
    }
  } catch (...) {
    cancel();
    throw;
  }
  others_ = OptimizerState::others_than(states_);
  for (const auto& other : others_) {
    if (other->grads().are_as_seen()) continue;
    other->update_grads();
    other->grads().watch_strays();
  }
}

/// Grads that are kScaled by another scale than this backward's.
void Backward::unscale_others() {
  for (const auto& state : states_) {
    Grads& grads = state->grads();
    for (const auto& scaling : grads.other_scalings(scaler_)) {
      const Tensor found_inf = grads.finish(*scaling);
      End end{found_inf, grads.last_report(), grads.last_report()};
      if (scaler_.agrees()) end = agreed(end, *scaling->by, nullptr, scaling->loss);
      const bool skips = scaling->overflow != nullptr;
      if (skips) scaling->overflow->add(end.found_inf);
      if (skips) state->overflows().add(end.found_inf, /*is_shared=*/true);
      if (skips) tell_sharers(*state, end);
      report(*state, end, skips);
    }
  }
}

void Backward::close() {
  is_open_ = false;
  if (use_ != nullptr) use_->has_ended = true;
  for (const auto& state : states_) state->set_in_backward(false);
  for (const auto& other : others_) {
    const bool may_be_scaled = !scaler_.is_identity() && !other->grads().are_as_seen();
    if (may_be_scaled) other->grads().note_strays();
  }
  others_.clear();
}

void Backward::cancel() {
  if (!is_open_) return;
  close();
  for (const auto& state : states_) state->grads().cancel();
}

void Backward::finish() {
  if (!is_open_) return;
  const bool is_unused = use_ != nullptr && !use_->was_used;
  if (is_unused && std::any_of(states_.begin(), states_.end(),
                               [](const auto& state) { return state->grads().are_new(); })) {
    cancel();
    TORCH_CHECK(false,
                "scale_loss: expected the backward of the scaled loss, got grads of another loss, "
                "which must not be unscaled; call scaled_loss.backward()");
  }
  close();
  if (options_.delay_unscale) {
    const auto overflow = scaler_.dynamic() ? scaler_.deferred() : nullptr;
    const auto scaling = std::make_shared<const Scaling>(Scaling{scaled_by_, overflow, loss_});
    for (const auto& state : states_) state->grads().delay(scaling);
    note_scaled_loss();
    return;
  }
  had_graphs_ = std::any_of(states_.begin(), states_.end(),
                            [](const auto& state) { return state->grads().have_graphs(); });
  const End end = end_all(!options_.delay_overflow_check);
  note_scaled_loss();
  const bool skips = scaler_.dynamic();
  const bool shares = states_.size() > 1 || scaler_.agrees();
  for (const auto& state : states_) {
    if (skips) state->overflows().add(end.found_inf, shares);
    if (skips) tell_sharers(*state, end);
    report(*state, end, skips);
  }
}

/// What a step is to know of the last loss.
void Backward::note_scaled_loss() const {
  if (scaler_.is_identity()) return;
  for (const auto& state : states_) state->note_scaled_loss();
}

const char* Backward::warning() const {
  if (!had_graphs_) return "";
  return "scale_loss: expected a backward without create_graph, got one with it, whose graph the "
         "grads lose as they are unscaled; differentiate what torch.autograd.grad(loss, params, "
         "create_graph=True) gives of the loss itself, or train at O0 or O4, which keep the graph";
}

/// Unscales and checks all grads, in one pass unless ranks agree, which updates a dynamic scale:
/// delayed overflows do that in a launch of their own, and skip no step.
Backward::End Backward::end_all(bool moves_scale) {
  const Tensor delayed = scaler_.deferred()->take();
  const bool moves = moves_scale && scaler_.dynamic();
  const bool agrees = scaler_.agrees();
  const bool moves_in_pass = moves && !delayed.defined() && (agrees || !states_.empty());
  const auto moved = [&](bool is_last) {
    return moves_in_pass && is_last ? &scaler_.about_to_move(scaled_by_.get()) : nullptr;
  };
  End end;
  for (const auto& state : states_) {
    BackwardEnd pass;
    pass.found_before = end.found_inf;
    pass.moved = moved(state == states_.back() && !agrees);
    pass.loss = loss_;
    end.found_inf = state->grads().finish(scaled_by_->loss_scale(), scaler_.is_identity(), pass);
    end.of_all = end.here = state->grads().last_report();
  }
  if (!end.found_inf.defined()) end.found_inf = at::zeros_like(scaler_.found_inf());
  if (agrees) end = agreed(end, *scaled_by_, moved(true), loss_);
  const Tensor any = delayed.defined() ? at::maximum(end.found_inf, delayed) : end.found_inf;
  scaler_.end_backward(any, moves_in_pass, end.of_all);
  if (!moves_scale) scaler_.deferred()->add(any);
  if (moves && !moves_in_pass) scaler_.update(any);
  return end;
}

void Backward::report(OptimizerState& state, const End& end, bool skips) const {
  const Grads::Report& weights = state.grads().last_report();
  const bool checked_nothing = scaler_.is_identity() && weights == nullptr;
  if (checked_nothing || state.observer() == nullptr) return;
  state.observer()->after_backward(
      {options_.loss_id, end.of_all, weights, skips, scaler_.agrees() ? end.here : nullptr});
}

Backward::End Backward::agreed(const End& end, const ScaleSnapshot& by, const DynamicScale* moved,
                               const Tensor& loss) const {
  auto [found_inf, report] = end_on_all_ranks(scaler_, end.found_inf, by.loss_scale(), moved, loss);
  return {std::move(found_inf), std::move(report), end.here};
}

/// Optimizers that were not given to this backward step parameters that it has reached.
void Backward::tell_sharers(const OptimizerState& state, const End& end) const {
  std::map<OptimizerState*, std::vector<int64_t>> shared;
  for (size_t i = 0; i < state.params().size(); ++i) {
    for (OptimizerState* user : state.params()[i]->users) {
      if (user != &state) shared[user].push_back(static_cast<int64_t>(i));
    }
  }
  for (const auto& [user, indices] : shared) {
    const Tensor theirs = state.overflows().of(indices);
    const Tensor found_inf = scaler_.agrees() ? end.found_inf : at::minimum(end.found_inf, theirs);
    user->overflows().add(found_inf, /*is_shared=*/true);
  }
}

}  // namespace torchamp::core

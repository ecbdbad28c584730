#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/detail/backward.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/late_report.h"
#include "core/loss_graph.h"
#include "core/skipped_grads.h"

namespace torchamp {

using at::Tensor;

/// Deferred overflows may be of grads that were zeroed since: they update the scale, in a separate
/// launch, and skip no step.
Tensor finish_backward(const std::vector<MasterGrads*>& all, LossScaler& scaler,
                       const ScaleSnapshot& scaled_by, bool moves_scale, const Tensor& loss) {
  const Tensor deferred = scaler.deferred()->take();
  const bool moves = moves_scale && scaler.dynamic();
  const bool moves_in_pass = moves && !deferred.defined() && !all.empty();
  Tensor found_inf;
  for (MasterGrads* each : all) {
    const bool is_last = each == all.back();
    const DynamicScale* moved =
        moves_in_pass && is_last ? &scaler.about_to_move(&scaled_by) : nullptr;
    found_inf = each->finish_backward(scaled_by.loss_scale(), found_inf, moved, loss);
  }
  if (!found_inf.defined()) found_inf = at::zeros_like(scaler.found_inf());
  const Tensor any = deferred.defined() ? at::maximum(found_inf, deferred) : found_inf;
  const auto report = all.empty() ? nullptr : all.back()->last_report();
  scaler.end_backward(any, moves_in_pass, report);
  if (!moves_scale) scaler.deferred()->add(any);
  if (moves && !moves_in_pass) scaler.update();
  return found_inf;
}

}  // namespace torchamp

namespace torchamp::core {

using at::Tensor;
using States = std::vector<std::shared_ptr<OptimizerState>>;

Backward::Backward(States states, LossScaler& scaler, Options options, const States& others)
    : states_(std::move(states)),
      scaler_(scaler),
      options_(options),
      is_needed_(is_needed(states_, scaler)) {
  const auto given = distinct_masters();
  std::copy_if(others.begin(), others.end(), std::back_inserter(others_), [&](const auto& other) {
    return std::find(given.begin(), given.end(), &other->masters()) == given.end();
  });
}

Backward::~Backward() {
  cancel();
  if (use_ != nullptr) use_->has_ended = true;
}

bool Backward::is_needed(const States& states, const LossScaler& scaler) {
  return !scaler.is_identity() || std::any_of(states.begin(), states.end(), [](const auto& state) {
    return state->weights().has_masters() || state->grads().delayed() != nullptr;
  });
}

std::vector<Masters*> Backward::distinct_masters() const {
  std::vector<Masters*> distinct;
  for (const auto& state : states_) {
    Masters* const masters = &state->masters();
    const bool is_new = std::find(distinct.begin(), distinct.end(), masters) == distinct.end();
    if (is_new) distinct.push_back(masters);
  }
  return distinct;
}

std::vector<MasterGrads*> Backward::distinct_grads() const {
  std::vector<MasterGrads*> grads;
  for (Masters* masters : distinct_masters()) grads.push_back(&masters->grads);
  return grads;
}

Tensor Backward::scale(const Tensor& loss) {
  if (scaled_by_ == nullptr) scaled_by_ = scaler_.snapshot();
  const Tensor scaled_loss = scaler_.scale(loss, scaled_by_.get());
  if (scaler_.looks_at_loss()) look_at(loss);
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

void Backward::look_at(const Tensor& loss) {
  if (!scaler_.is_identity()) watch_strangers(loss);
  warn_of_saturation(loss);
}

/// The optimizers of other initializes that step what the loss reaches.
void Backward::watch_strangers(const Tensor& loss) {
  std::set<const Masters*> known;
  for (const auto& state : states_) known.insert(&state->masters());
  for (const auto& state : others_) known.insert(&state->masters());
  for (const Tensor& leaf : leaves_of(loss)) {
    const auto stranger = OptimizerState::of(leaf);
    if (stranger != nullptr && known.insert(&stranger->masters()).second) {
      others_.push_back(stranger);
    }
  }
}

void Backward::warn_of_saturation(const Tensor& loss) {
  if (!has_cross_entropy_of_16_bit_sigmoid(loss)) return;
  TORCH_WARN_ONCE(
      "scale_loss: the loss is a binary cross entropy of a sigmoid that was computed in 16 bits, "
      "where it rounds to 0 or 1 and the grads overflow; leave out the sigmoid and use "
      "binary_cross_entropy_with_logits (BCEWithLogitsLoss)");
}

void Backward::prepare() {
  if (!is_needed_) return;
  for (const auto& state : states_) {
    TORCH_CHECK(!state->is_in_backward(),
                "scale_loss: expected the optimizer not to be inside an open scale_loss, but it "
                "is; close that scale_loss first, or scale the sum of the losses");
  }
  for (const auto& state : states_) state->refresh();
  if (scaled_by_ == nullptr) scaled_by_ = scaler_.snapshot();
  for (const auto& state : states_) state->backward_ = this;
  is_open_ = true;
  try {
    for (Masters* masters : distinct_masters()) {
      settle(*masters);
      masters->strays.begin_own();
      masters->grads.prepare_backward();
    }
  } catch (...) {
    cancel();
    throw;
  }
  for (const auto& other : others_) other->masters().strays.watch();
}

/// Discards grads that were zeroed or skipped, and unscales delayed grads of another scale than
/// this backward's.
void Backward::settle(Masters& masters) {
  const auto& users = masters.users;
  MasterGrads& grads = masters.grads;
  users.front()->settle();
  for (const OptimizerState* user : users) discard_doomed(*user);
  if (grads.delayed() == nullptr) return;
  const MasterGrads::Scaled scaled = *grads.delayed();
  if (scaled.by->is_still(scaler_.loss_scale_tensor())) return;
  const Tensor found_inf = grads.finish_backward(scaled.by->loss_scale(), {}, nullptr, scaled.loss);
  const bool skips = scaled.overflow != nullptr;
  if (skips) scaled.overflow->add(found_inf);
  for (OptimizerState* user : users) {
    const bool was_given = std::exchange(user->has_delayed_, false);
    if (skips && was_given) user->gather_delayed(options_.loss_id, found_inf);
    if (skips && !was_given) user->accumulate_shared(options_.loss_id);
    report_to(*user, grads.last_report(), skips && was_given);
  }
}

void Backward::close() {
  is_open_ = false;
  if (use_ != nullptr) use_->has_ended = true;
  for (const auto& state : states_) state->backward_ = nullptr;
  for (const auto& other : others_) other->masters().strays.note(!scaler_.is_identity());
}

bool Backward::has_new_grads() const {
  const auto grads = distinct_grads();
  return std::any_of(grads.begin(), grads.end(),
                     [](const MasterGrads* each) { return each->has_new_grads(); });
}

void Backward::cancel() {
  if (!is_open_) return;
  close();
  for (MasterGrads* grads : distinct_grads()) grads->cancel_backward();
}

void Backward::finish() {
  if (!is_open_) return;
  if (use_ != nullptr && !use_->was_used && has_new_grads()) {
    cancel();
    TORCH_CHECK(false,
                "scale_loss: expected the backward of the scaled loss, got grads of another loss, "
                "which must not be unscaled; call scaled_loss.backward()");
  }
  close();
  for (const auto& state : states_) {
    state->is_to_step_ = true;
    state->had_scaled_loss_ |= !scaler_.is_identity();
    state->shares_overflows_ |= states_.size() > 1;
  }
  const auto grads = distinct_grads();
  if (options_.delay_unscale) {
    const auto overflow = scaler_.dynamic() ? scaler_.deferred() : nullptr;
    for (MasterGrads* each : grads) each->delay_backward({scaled_by_, overflow, loss_});
    for (const auto& state : states_) state->has_delayed_ = true;
    return;
  }
  for (Masters* masters : distinct_masters()) {
    for (OptimizerState* user : masters->users) user->has_delayed_ = false;
  }
  const Tensor found_inf =
      finish_backward(grads, scaler_, *scaled_by_, !options_.delay_overflow_check, loss_);
  for (const auto& state : states_) {
    state->may_have_stepped_ = state->steps_unseen_ && !state->grads().lazy();
    if (scaler_.dynamic()) state->accumulate(options_.loss_id, found_inf);
    report_to(*state, scaler_.last_report(), scaler_.dynamic());
  }
  accumulate_shared();
}

/// `end`: the report of the backward, which all its optimizers share.
void Backward::report_to(OptimizerState& state, const Report& end, bool skips) const {
  state.late_report().accumulate({options_.loss_id, end, state.grads().last_report(), skips});
}

/// Optimizers that were not given to this backward step parameters that it reached.
void Backward::accumulate_shared() {
  for (Masters* masters : distinct_masters()) {
    for (OptimizerState* user : masters->users) {
      const auto is_user = [&](const auto& state) { return state.get() == user; };
      if (std::any_of(states_.begin(), states_.end(), is_user)) continue;
      if (scaler_.dynamic()) user->accumulate_shared(options_.loss_id);
      report_to(*user, scaler_.last_report(), /*skips=*/false);
    }
  }
}

}  // namespace torchamp::core

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/detail/backward.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/backward_report.h"
#include "core/late_report.h"
#include "core/loss_graph.h"
#include "core/skipped_grads.h"
#include "core/unscale_pass.h"

namespace torchamp {
namespace {

using at::Tensor;

/// The end of a backward that may be one of all ranks.
struct CommonEnd {
  Tensor found_inf;
  std::shared_ptr<const BackwardReport> report;
};

/// Agrees on the `found_inf` of this rank's pass over its grads, then updates `moved` and reports,
/// in one launch, as that pass does without other ranks.
CommonEnd end_on_all_ranks(const LossScaler& scaler, const Tensor& found_inf,
                           const ScaleSnapshot& scaled_by, const DynamicScale* moved,
                           const Tensor& loss) {
  scaler.agree(found_inf);
  const auto report = acquire_report(scaler.device());
  BackwardEnd end;
  end.found_before = found_inf;
  end.found_inf = at::empty_like(found_inf);
  end.inv_scale = at::empty_like(found_inf);
  end.per_tensor = at::empty({0}, found_inf.options().dtype(at::kByte));
  end.moved = moved;
  end.loss = loss;
  if (report != nullptr) end.report = report->bytes();
  UnscalePass(0).run(scaled_by.loss_scale(), make_overflow_flags(0, scaler.device()), end);
  return {end.found_inf, report};
}

}  // namespace

/// Deferred overflows may be of grads that were zeroed since: they update the scale, in a separate
/// launch, and skip no step.
Tensor finish_backward(const std::vector<MasterGrads*>& all, LossScaler& scaler,
                       const ScaleSnapshot& scaled_by, bool moves_scale, const Tensor& loss) {
  const Tensor deferred = scaler.deferred()->take();
  const bool moves = moves_scale && scaler.dynamic();
  const bool agrees = scaler.agrees();
  const bool moves_in_pass = moves && !deferred.defined() && (agrees || !all.empty());
  const auto moved = [&](bool is_last) {
    return moves_in_pass && is_last ? &scaler.about_to_move(&scaled_by) : nullptr;
  };
  Tensor found_inf;
  for (MasterGrads* each : all) {
    const bool is_last = each == all.back() && !agrees;
    found_inf = each->finish_backward(scaled_by.loss_scale(), found_inf, moved(is_last), loss);
  }
  if (!found_inf.defined()) found_inf = at::zeros_like(scaler.found_inf());
  CommonEnd end{found_inf, all.empty() ? nullptr : all.back()->last_report()};
  if (agrees) end = end_on_all_ranks(scaler, found_inf, scaled_by, moved(true), loss);
  found_inf = end.found_inf;
  const Tensor any = deferred.defined() ? at::maximum(found_inf, deferred) : found_inf;
  scaler.end_backward(any, moves_in_pass, end.report);
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
  open(&MasterGrads::prepare_backward);
}

void Backward::take_grads() {
  for (const MasterGrads* grads : distinct_grads()) {
    TORCH_CHECK(!grads->has_finished_grads(),
                "finish: expected grads of backwards since the last finish, got some that it has "
                "unscaled; call the optimizer's zero_grad() before the backwards of a step");
  }
  open(&MasterGrads::take_backward);
}

void Backward::open(void (MasterGrads::*begin)()) {
  if (!is_needed_) return;
  for (const auto& state : states_) {
    TORCH_CHECK(!state->is_in_backward(),
                "scale_loss: expected the optimizer not to be inside an open scale_loss, but it "
                "is; close that scale_loss first, or scale the sum of the losses");
  }
  if (!options_.delay_unscale) scaler_.compare_ranks();
  for (const auto& state : states_) state->refresh();
  if (scaled_by_ == nullptr) scaled_by_ = scaler_.snapshot();
  for (const auto& state : states_) state->backward_ = this;
  is_open_ = true;
  try {
    for (Masters* masters : distinct_masters()) {
      masters->strays.begin_own();
      settle(*masters);
      masters->strays.forget_dropped();
      (masters->grads.*begin)();
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
  CommonEnd end{found_inf, grads.last_report()};
  if (scaler_.agrees())
    end = end_on_all_ranks(scaler_, found_inf, *scaled.by, nullptr, scaled.loss);
  const bool skips = scaled.overflow != nullptr;
  if (skips) scaled.overflow->add(end.found_inf);
  for (OptimizerState* user : users) {
    const bool was_given = std::exchange(user->has_delayed_, false);
    if (skips && was_given) user->gather_delayed(options_.loss_id, end.found_inf);
    if (skips && !was_given) accumulate_shared(*user, end.found_inf);
    report_to(*user, {end.report, grads.last_report()}, skips && was_given);
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
    state->shares_overflows_ |= states_.size() > 1 || scaler_.agrees();
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
  const Ends ends{scaler_.last_report(), grads.empty() ? nullptr : grads.back()->last_report()};
  for (const auto& state : states_) {
    state->may_have_stepped_ = state->steps_unseen_ && !state->grads().lazy();
    if (scaler_.dynamic()) state->accumulate(options_.loss_id, found_inf);
    report_to(*state, ends, scaler_.dynamic());
  }
  accumulate_shared(ends, found_inf);
}

void Backward::report_to(OptimizerState& state, const Ends& ends, bool skips) const {
  state.late_report().accumulate({options_.loss_id, ends.of_all, state.grads().last_report(), skips,
                                  scaler_.agrees() ? ends.here : nullptr});
}

/// Ranks agree on `found_inf`, of the backward, but not on which parameters it is of.
void Backward::accumulate_shared(OptimizerState& user, const Tensor& found_inf) const {
  user.accumulate_shared(options_.loss_id, scaler_.agrees() ? found_inf : Tensor());
}

/// Optimizers that were not given to this backward step parameters that it reached.
void Backward::accumulate_shared(const Ends& ends, const Tensor& found_inf) {
  for (Masters* masters : distinct_masters()) {
    for (OptimizerState* user : masters->users) {
      const auto is_user = [&](const auto& state) { return state.get() == user; };
      if (std::any_of(states_.begin(), states_.end(), is_user)) continue;
      if (scaler_.dynamic()) accumulate_shared(*user, found_inf);
      report_to(*user, ends, /*skips=*/false);
    }
  }
}

}  // namespace torchamp::core

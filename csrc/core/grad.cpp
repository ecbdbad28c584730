#include "core/grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <array>
#include <utility>

#include "ops/unscale_pass.h"

namespace torchamp::core {
namespace {

using at::Tensor;

/// docs/grads.md has the reasons. Rows: from; columns: to, both in GradState's order.
constexpr std::array<std::array<bool, kGradStates>, kGradStates> kMoves = {{
    /* none      */ {true, true, false, false, true},
    /* open      */ {true, false, true, true, true},
    /* scaled    */ {true, true, true, false, true},
    /* checked   */ {true, false, false, true, true},
    /* unscaled  */ {true, true, false, false, true},
}};

/// Whether it is a view of memory that a reducer writes, as with gradient_as_bucket_view.
bool is_part_of_a_bucket(const Tensor& grad) {
  return grad.has_storage() && grad.storage().nbytes() > grad.nbytes();
}

using Accumulator = decltype(torch::autograd::AutogradMeta::grad_accumulator_);

/// Makes the node that accumulates the tensor's grad expect grads as a new one would.
template <class Node>
void renew_metadata(const Tensor& tensor, Node& node) {
  node.clear_input_metadata();
  node.add_input_metadata(tensor);
}

}  // namespace

bool can_move(GradState from, GradState to) {
  return kMoves[static_cast<size_t>(from)][static_cast<size_t>(to)];
}

const char* name_of(GradState state) {
  constexpr std::array<const char*, kGradStates> names = {"none", "open", "scaled", "checked",
                                                          "unscaled"};
  return names[static_cast<size_t>(state)];
}

void set_grad_dtype(const Tensor& model) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11
  const Tensor& grad = grad_of(model);
  auto* const meta = torch::autograd::impl::get_autograd_meta(model);
  if (meta == nullptr) return;
  const bool differs = grad.defined() && grad.scalar_type() != model.scalar_type();
  const bool is_lent = !c10::isReducedFloatingType(model.scalar_type());
  if (is_lent && !differs) return;  // its node is to take what it takes outside
  if (std::exchange(meta->allow_grad_dtype_mismatch_, differs) == differs) return;
  // One that lives on, as in DistributedDataParallel, is to take the grads that a new one would.
  if (const auto node = torch::autograd::impl::try_get_grad_accumulator(model))
    renew_metadata(model, *node);
#else
  static_cast<void>(model);
#endif
}

void set_data(const Tensor& tensor, const Tensor& data) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
  tensor.set_data(data);
  if (node == nullptr) return;
  renew_metadata(tensor, *node);
  torch::autograd::impl::set_grad_accumulator(tensor, Accumulator(node));
}

Grad::Grad(Tensor model, Tensor master) : model_(std::move(model)), master_(std::move(master)) {}

void Grad::move(GradState to) {
  TORCH_INTERNAL_ASSERT(can_move(state_, to), name_of(state_), " to ", name_of(to));
  state_ = to;
}

void Grad::note_left(const Tensor& grad) {
  if (!held_.left.is_unchanged(grad)) held_.left = Mark(grad);
  held_.earlier.reset();
  held_.scaling.reset();
  held_.is_shown = held_.is_scaled = false;
}

bool Grad::is_usable() const {
  if (!has_master()) return grad_of(model_).defined();
  return state_ == GradState::kUnscaled || state_ == GradState::kChecked;
}

bool Grad::has_contributed() const {
  return (is_open() ? before_->state : state_) != GradState::kNone;
}

bool Grad::is_new() const {
  const Tensor& grad = grad_of(model_);
  const Mark& known = is_open() ? before_->model_left : held_.left;
  if (grad.defined() && !known.is_unchanged(grad)) return true;
  return is_open() && has_master() && grad_of(master_).defined() &&
         !before_->master_left.is_unchanged(grad_of(master_));
}

bool Grad::is_left() const {
  const Tensor& grad = grad_of(model_);
  return grad.defined() && held_.left.is_same(grad);
}

// ---- a backward

void Grad::open() {
  Tensor& grad = model_grad();
  if (!has_stray()) {
    stray_ = Stray::kNone;
  } else if (has_master() && state_ == GradState::kNone) {
    grad.reset();  // set aside for good
  } else {
    stray_ = Stray::kAmong;
  }
  const bool stays = state_ == GradState::kScaled;
  before_ = Before{state_, {}, {}, {}, {}};
  move(GradState::kOpen);
  if (has_master() && grad_of(master_).defined()) {
    Tensor& own = master_.mutable_grad();
    before_->master_grad = stays ? own.clone() : std::exchange(own, {});
    before_->master_left = Mark(own);
  }
  if (!grad.defined()) return set_grad_dtype(model_);
  const bool is_copied = stays || is_part_of_a_bucket(grad);
  const bool was_left = held_.left.is_same(grad);
  before_->model_grad = is_copied ? grad.detach().clone() : grad;
  if (is_copied && was_left) held_.left = Mark(before_->model_grad);
  if (stays) return void(before_->model_left = Mark(grad));
  grad.reset();
  set_grad_dtype(model_);
}

void Grad::take() {
  if (has_stray()) stray_ = Stray::kAmong;
  before_ = Before{state_, {}, {}, {}, {}};
  move(GradState::kOpen);
}

void Grad::cancel() {
  Before before = *std::exchange(before_, std::nullopt);
  model_grad() = std::move(before.model_grad);
  if (has_master()) master_.mutable_grad() = std::move(before.master_grad);
  move(before.state);
  set_grad_dtype(model_);
}

Tensor Grad::scaled() const {
  const Tensor& grad = grad_of(model_);
  if (!has_master()) return grad;
  const Tensor& own = grad_of(master_);
  if (!own.defined() || !grad.defined()) return own.defined() ? own : grad;
  return own.add(grad);
}

const Tensor& Grad::sum_before() const {
  static const auto& none = *new Tensor;
  if (!is_open()) return none;
  if (before_->state == GradState::kScaled) return held_.earlier;
  if (has_master() && before_->state != GradState::kUnscaled) return none;
  return before_->model_grad;
}

bool Grad::can_stay() const {
  const Tensor& grad = grad_of(model_);
  if (has_master() && grad_of(master_).defined()) return false;
  return !grad.defined() || !(grad.is_sparse() || is_part_of_a_bucket(grad));
}

void Grad::delay(const std::shared_ptr<const Scaling>& scaling) {
  const Tensor& grad = grad_of(model_);
  if (!grad.defined() && !grad_of(master_).defined()) return cancel();
  held_ = {Mark(grad), sum_before(), is_new() ? scaling : held_.scaling, false, false};
  before_.reset();
  move(GradState::kScaled);
}

void Grad::check() {
  before_.reset();
  note_left(grad_of(model_));
  move(GradState::kChecked);
}

void Grad::finish(Tensor grad, bool shows) {
  move(GradState::kUnscaled);
  before_.reset();
  if (grad.requires_grad()) grad = grad.detach();
  if (has_master()) {
    if (shows) grad = grad.to(master_.scalar_type());
    master_.mutable_grad() = shows ? grad : Tensor();
  }
  note_left(grad);
  held_.is_shown = shows && has_master();
  model_grad() = std::move(grad);
  set_grad_dtype(model_);
}

// ---- the program and its steps

bool Grad::notice(bool shows) {
  if (is_open()) return false;
  const bool is_scaled = state_ == GradState::kScaled || state_ == GradState::kChecked;
  return has_master() && !is_scaled ? notice_both(shows) : notice_model();
}

/// For parameters without master, and grads that are still scaled.
bool Grad::notice_model() {
  const Tensor& grad = grad_of(model_);
  if (!grad.defined()) {
    const bool is_masters_alone =
        has_master() && grad_of(master_).defined() && held_.left.is_same(grad);
    const bool is_zeroed = state_ != GradState::kNone && !is_masters_alone;
    if (is_zeroed) zero();
    return is_zeroed;
  }
  TORCH_CHECK(
      state_ != GradState::kScaled || is_left() || is_part_of_a_bucket(grad),
      "expected grads that delay_unscale has left scaled to be modified in place, or zeroed "
      "by zero_grad(), got another grad of a parameter of sizes ",
      model_.sizes(), ", which may not be scaled; call the optimizer's zero_grad()");
  return false;
}

/// The first of these that is so:
///   the master has a grad that is not shown    it is added to a current one of the model, or
///                                              replaces the one that was shown
///   kUnscaled; the model has none, or the      both are zeroed
///     master lacks the one that was shown
///   the model's is current, and is new, or     it counts
///     is to be shown, or no longer
/// Current is what kUnscaled has, or what the program, or autograd outside of scale_loss, has put
/// there since.
bool Grad::notice_both(bool shows) {
  const Tensor& grad = grad_of(model_);
  const Tensor own = grad_of(master_);
  const bool counts = state_ == GradState::kUnscaled;
  if (!counts && !grad.defined() && !own.defined()) return false;
  const bool is_alone = stray_ == Stray::kAlone && watched_.is_same(grad);
  const bool is_foreign = is_alone || (held_.is_scaled && is_left());
  const bool is_current = counts ? grad.defined() : is_new() && !is_foreign;
  if (own.defined() && !held_.left.is_same(own)) {
    const bool is_replaced = held_.is_shown && is_left();
    finish(is_current && !is_replaced ? own.add(grad) : own, shows);
  } else if (counts && (!grad.defined() || (held_.is_shown && !own.defined() && is_left()))) {
    zero();
    return true;
  } else if (is_current && (!counts || !is_left() || shows != held_.is_shown)) {
    finish(grad, shows);
  }
  return false;
}

void Grad::zero() {
  if (is_open()) {
    before_ = Before{GradState::kNone, {}, {}, before_->model_left, before_->master_left};
  } else {
    if (has_master() && is_left()) model_grad().reset();
    move(GradState::kNone);
  }
  held_ = {};
  if (has_master()) {
    master_.mutable_grad().reset();
    set_grad_dtype(model_);
  }
  refused_.reset();
  stray_ = Stray::kNone;
}

void Grad::use(const Tensor& refused) {
  const Tensor& grad = grad_of(model_);
  const bool is_scaled = state_ == GradState::kChecked || (is_left() && held_.is_scaled);
  refused_ = refused;
  if (has_master() || refused.defined()) note_left(grad);
  if (!has_master()) return;
  master_.mutable_grad().reset();
  move(GradState::kNone);
  held_.is_scaled = is_scaled;
}

void Grad::discard_refused() {
  if (!refused_.defined() || is_open()) return;
  const Tensor refused = std::exchange(refused_, Tensor());
  Tensor& grad = model_grad();
  if (!is_left() || held_.is_scaled) return;
  at::NoGradGuard no_grad;
  const Tensor values = values_of(grad);
  if (refused.is_cpu()) {
    if (refused.item<float>() == 0) return;
    const bool is_added_to = is_new() && !values.isfinite().all().item<bool>();
    if (is_added_to) refused_ = refused;  // told again until it is zeroed
    TORCH_CHECK(!is_added_to,
                "expected the grads that a skipped step has left to be zeroed before a "
                "backward outside of scale_loss, got one, of sizes ",
                model_.sizes(),
                ", that was added to grads that are not finite; call the optimizer's zero_grad()");
    if (is_new() || has_master()) return;
    grad.reset();
    move(GradState::kNone);
    held_ = {};
  } else if (!has_master() || is_new()) {
    values.masked_fill_(refused.to(grad.device(), at::kBool), 0);
  }
}

// ---- grads of backwards that were not given the optimizer

void Grad::watch_stray() {
  if (is_open() || has_stray()) return;
  stray_ = Stray::kNone;
  watched_ = Mark(grad_of(model_));
}

/// What the backward has left the master is in the model's place then, where it is not used.
void Grad::note_stray() {
  if (is_open()) return;
  Tensor& grad = model_grad();
  const bool is_masters =
      has_master() && grad_of(master_).defined() && !held_.left.is_same(grad_of(master_));
  if (is_masters) {
    Tensor own = std::exchange(master_.mutable_grad(), {});
    if (!grad.defined()) grad = std::move(own);
    set_grad_dtype(model_);
  }
  const bool is_own = held_.left.is_unchanged(grad);  // of a scale_loss that was open, too
  const bool is_known = is_own || !grad.defined() || watched_.is_unchanged(grad);
  if ((is_known && !is_masters) || stray_ == Stray::kAmong) return;
  stray_ = Stray::kAlone;
  watched_ = Mark(grad);
}

bool Grad::has_stray() const {
  const Tensor& grad = grad_of(model_);
  if (stray_ == Stray::kNone || !grad.defined()) return false;
  return stray_ == Stray::kAmong || watched_.is_unchanged(grad);
}

}  // namespace torchamp::core

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <torchamp/detail/optimizer_state.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/late_report.h"
#include "core/skipped_grads.h"

namespace torchamp::core {
namespace {

using at::Tensor;

/// The optimizer of each parameter that is stepped, for all threads.
class Steppers {
 public:
  void add(const Tensor& param, OptimizerState& state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    known_[param.unsafeGetTensorImpl()] = {&state, state.weak_from_this()};
  }

  void remove(const TensorSet& params, const OptimizerState& state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const c10::TensorImpl* param : params) {
      const auto found = known_.find(param);
      if (found != known_.end() && found->second.first == &state) known_.erase(found);
    }
  }

  std::shared_ptr<OptimizerState> find(const Tensor& param) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = known_.find(param.unsafeGetTensorImpl());
    return found == known_.end() ? nullptr : found->second.second.lock();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*,
                     std::pair<OptimizerState*, std::weak_ptr<OptimizerState>>>
      known_;
};

/// Never destroyed: states may outlive other statics.
Steppers& steppers() {
  static auto& instance = *new Steppers;
  return instance;
}

}  // namespace

std::shared_ptr<OptimizerState> OptimizerState::of(const Tensor& param) {
  return steppers().find(param);
}

OptimizerState::OptimizerState(std::shared_ptr<Masters> masters, bool steps_unseen)
    : masters_(std::move(masters)),
      steps_unseen_(steps_unseen),
      late_report_(std::make_unique<LateReport>()) {
  masters_->users.push_back(this);
}

OptimizerState::~OptimizerState() {
  steppers().remove(stepped_, *this);
  auto& users = masters_->users;
  users.erase(std::find(users.begin(), users.end(), this));
}

void OptimizerState::add_param(const Tensor& param) {
  stepped_.insert(param.unsafeGetTensorImpl());
  steppers().add(param, *this);
  if (had_scaled_loss_) param.mutable_grad().reset();
}

bool OptimizerState::steps(const Tensor& param) const {
  return stepped_.count(param.unsafeGetTensorImpl()) > 0;
}

/// A replayed graph writes the memory of its captured backward.
void OptimizerState::accumulate(int64_t loss_id, const Tensor& found_inf) {
  Tensor& gathered = found_inf_[loss_id];
  gathered = gathered.defined() ? at::maximum(gathered, found_inf) : found_inf;
}

void OptimizerState::gather_delayed(int64_t loss_id, const Tensor& found_inf) {
  accumulate(loss_id, found_inf);
  has_unreported_ = shares_overflows_ = true;
}

Tensor OptimizerState::found_inf() const {
  Tensor any;
  for (const auto& [loss_id, found_inf] : found_inf_) {
    any = any.defined() ? at::maximum(any, found_inf) : found_inf;
  }
  return any;
}

bool OptimizerState::has_overflowed() const {
  const Tensor found = found_inf();
  return found.defined() && found.item<float>() != 0.0f;
}

void OptimizerState::clear_overflows() {
  found_inf_.clear();
  has_refused_ = has_unreported_ = is_agreed_ = shares_overflows_ = false;
  late_report_->clear();
}

/// int64: where its parameters are in master_params().
const Tensor& OptimizerState::indices(at::Device device) {
  if (!indices_.defined() || indices_.numel() != static_cast<int64_t>(stepped_.size())) {
    std::vector<int64_t> indices;
    const auto& params = weights().master_params();
    for (size_t i = 0; i < params.size(); ++i) {
      if (steps(params[i])) indices.push_back(static_cast<int64_t>(i));
    }
    indices_ = at::tensor(indices, at::TensorOptions(at::kLong).device(device));
  }
  return indices_;
}

/// float32 scalar, 1 if a grad of one of its parameters was not finite; undefined: none was.
Tensor OptimizerState::found_in_own_params() {
  const Tensor& flags = grads().found_inf_per_param();
  if (!flags.defined()) return {};
  return flags.index_select(0, indices(flags.device())).any().to(at::kFloat);
}

/// Of a backward that was given other optimizers, which step some of these parameters too.
/// `agreed`: its overflow on any rank, undefined unless ranks agree: then the others do not know of
/// which parameters it is.
void OptimizerState::accumulate_shared(int64_t loss_id, const Tensor& agreed) {
  accumulate(loss_id, agreed.defined() ? agreed : found_in_own_params());
  has_unreported_ = shares_overflows_ = true;
  is_agreed_ |= agreed.defined();
}

void OptimizerState::refuse(const std::vector<Tensor>& stepped) {
  grads().refuse(without_shared(*this, stepped));
  has_refused_ = true;
}

bool OptimizerState::is_refused() const {
  return has_refused_ || (has_unreported_ && has_overflowed());
}

void OptimizerState::refresh() {
  if (weights().refresh()) has_refused_ = false;
  if (std::exchange(may_have_stepped_, false)) weights().recopy_to_model();
}

void OptimizerState::settle() {
  for (OptimizerState* user : masters_->users) {
    discard_skipped(*user, std::exchange(user->skipped_found_inf_, {}));
  }
  discard_zeroed();
}

/// An overflow ends where all grads are zeroed.
void OptimizerState::discard_zeroed() {
  if (!grads().drop_zeroed()) return;
  for (OptimizerState* user : masters_->users) user->clear_overflows();
}

void OptimizerState::check_unscaled(const char* function) {
  if (!is_in_backward()) settle();
  TORCH_CHECK(!grads_are_scaled(), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss that is open or "
              "has delay_unscale, as in no_sync(); clip after the last scale_loss of the step");
  check_not_stray(function, /*of_masters=*/false);
}

void OptimizerState::begin_step(const char* function, bool adopts_data_writes) {
  TORCH_CHECK(!is_in_backward(), function,
              ": expected the optimizer not to be inside an open scale_loss, but it is; "
              "step after it, where the grads are unscaled");
  settle();
  TORCH_CHECK(!grads().are_delayed(stepped_), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss with "
              "delay_unscale, as in no_sync(); run one without it before the step");
  check_not_stray(function, /*of_masters=*/true);
  note_doubts(function);
  weights().refresh();
  if (adopts_data_writes) weights().adopt_data_writes();
  may_have_stepped_ = false;
}

/// of_masters: also those of the model whose parameters have masters.
void OptimizerState::check_not_stray(const char* function, bool of_masters) const {
  if (masters_->strays.empty()) return;
  const auto& params = weights().master_params();
  for (size_t i = 0; i < params.size(); ++i) {
    const bool counts = steps(params[i]) && (of_masters || !weights().is_separate(i));
    TORCH_CHECK(!counts || !masters_->strays.has(i), function,
                ": expected grads of backwards in scale_loss's that were given this optimizer, got "
                "one, of sizes ",
                params[i].sizes(),
                ", of a scale_loss that was not; give it all optimizers whose parameters its loss "
                "reaches, or zero their grads before their own backward");
  }
}

/// Once each.
void OptimizerState::note_doubts(const char* function) {
  doubt_.clear();
  if (!lacked_grads_ && !has_refused_ && !stepped_.empty() && grads().lacks(stepped_)) {
    lacked_grads_ = true;
    doubt_ = std::string(function) +
             ": expected grads, got none, so nothing changes; run the backward, of a loss that "
             "reaches the optimizer's parameters, in scale_loss";
  }
  if (!had_modified_grads_ && grads().were_modified()) {
    had_modified_grads_ = true;
    doubt_ = std::string(function) +
             ": expected the model's grads to be unmodified since scale_loss, got modified ones; "
             "the step uses those of amp.master_params: clip with amp.clip_grad_norm_";
  }
}

void OptimizerState::end_step(const std::vector<LossScaler*>& scalers) {
  late_report_->note(scalers);
  is_to_step_ = false;
  skipped_found_inf_ = found_inf();
  drop_master_grads();
  clear_overflows();
  for (OptimizerState* user : masters_->users) {
    if (!user->is_to_step_) user->keep_overflows_of_grads();
  }
}

/// After another optimizer's step has dropped some. Agreed ones are kept.
void OptimizerState::keep_overflows_of_grads() {
  if (is_agreed_) return;
  const Tensor left = found_inf_.empty() ? Tensor() : found_in_own_params();
  if (!left.defined() || (left.is_cpu() && left.item<float>() == 0.0f)) return clear_overflows();
  for (auto& [loss_id, found_inf] : found_inf_) found_inf = at::minimum(found_inf, left);
}

void OptimizerState::drop_master_grads() {
  if (masters_->users.size() == 1) return grads().drop_master_grads();
  drop_stepped(*this);
  grads().zero_refused(stepped_, /*zeros=*/false);
  clear_found_inf_per_param();
}

void OptimizerState::clear_found_inf_per_param() {
  const Tensor& flags = grads().found_inf_per_param();
  if (!flags.defined() || masters_->users.size() == 1) return grads().clear_found_inf_per_param();
  flags.index_fill_(0, indices(flags.device()), 0);
}

void OptimizerState::drop_strays() {
  if (masters_->strays.empty()) return;
  for (size_t i = 0; i < weights().size(); ++i) {
    if (steps(weights().master_params()[i])) masters_->strays.drop(i);
  }
}

void OptimizerState::zero_grad(bool set_to_none) {
  const auto& users = masters_->users;
  const auto is_open = [](const OptimizerState* user) { return user->is_in_backward(); };
  const bool shows_zeroing = users.size() > 1 && !grads().has_refused_besides(stepped_);
  if (shows_zeroing && std::none_of(users.begin(), users.end(), is_open)) discard_zeroed();
  grads().zero_refused(stepped_, /*zeros=*/!set_to_none);
  grads().zero_model_grads(set_to_none, stepped_);
  clear_found_inf_per_param();
  drop_strays();
  has_delayed_ = false;
  skipped_found_inf_.reset();
  clear_overflows();
}

void OptimizerState::drop_set_aside(const std::vector<Tensor>& model_params) {
  TensorSet dropped;
  for (const Tensor& param : model_params) dropped.insert(param.unsafeGetTensorImpl());
  for (size_t i = 0; i < weights().size(); ++i) {
    const bool is_dropped = dropped.count(weights().model_params()[i].unsafeGetTensorImpl()) > 0;
    if (is_dropped) masters_->strays.drop(i);
  }
  if (!grads().drop_known(dropped)) return;
  grads().clear_found_inf_per_param();
  for (OptimizerState* user : masters_->users) {
    user->has_delayed_ = false;
    user->clear_overflows();
  }
}

}  // namespace torchamp::core

// The part of MasterWeights that leaves master grads unmade and steps without them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/master_weights.h>
#include <torchamp/ops.h>

#include <algorithm>

#include "core/versions.h"
#include "ops/borrowed.h"

namespace torchamp {

using at::Tensor;

void MasterWeights::set_lazy(bool lazy) {
  if (!lazy) {
    materialize();
    join();
  }
  lazy_ = lazy;
}

/// Not while grads add up over several backwards: each may have a scale of its own.
bool MasterWeights::can_leave_pending() const {
  const auto must_be_made = [&](size_t i) {
    const Tensor& grad = model_params_[i].grad();
    return master_params_[i].grad().defined() || (grad.defined() && grad.is_sparse());
  };
  return lazy_ && !separate_.empty() &&
         std::none_of(separate_.begin(), separate_.end(), must_be_made);
}

void MasterWeights::clear_pending() {
  pending_ = Pending();
}

/// Before the master grads are made, the model's are all that there is of them.
void MasterWeights::check_pending_unchanged() const {
  for (const size_t i : separate_) {
    const Tensor& grad = pending_.grads[i];
    TORCH_CHECK(!grad.defined() || version_of(grad) == pending_.versions[i],
                "expected the grad of model parameter ", i, " of the optimizer, of sizes ",
                grad.sizes(),
                ", to stay as scale_loss left it, got one that was written since; "
                "clip with amp.clip_grad_norm_, or write the grads of amp.master_params");
  }
}

void MasterWeights::materialize() {
  if (!is_pending()) return;
  at::NoGradGuard no_grad;
  check_pending_unchanged();
  std::vector<Tensor> made(model_params_.size());
  for (const size_t i : separate_) {
    if (!pending_.grads[i].defined()) continue;
    const auto dtype = master_params_[i].scalar_type();
    made[i] = at::empty_like(pending_.grads[i], pending_.grads[i].options().dtype(dtype));
  }
  const Tensor checked_before = at::zeros_like(pending_.factor);
  ops::unscale(pending_.grads, made, pending_.factor, checked_before);
  for (const size_t i : separate_) master_params_[i].mutable_grad() = made[i];
  clear_pending();
}

/// Where each is in master_params(), found at once as far as they are in that order.
std::vector<size_t> MasterWeights::indices_of(const std::vector<Tensor>& master_params) const {
  std::vector<size_t> indices;
  indices.reserve(master_params.size());
  size_t next = 0;
  for (const Tensor& master : master_params) {
    const bool is_next = next < master_params_.size() && master_params_[next].is_same(master);
    if (!is_next) next = master_index_.at(master.unsafeGetTensorImpl());
    indices.push_back(next++);
  }
  return indices;
}

void MasterWeights::step(FusedStepper& stepper, const Tensor& skip) {
  at::NoGradGuard no_grad;
  if (stepper.joins_norms()) materialize();
  if (stepper.reads_norms_of_params()) join();
  if (is_pending()) check_pending_unchanged();
  const std::vector<size_t> indices = indices_of(stepper.params());
  Borrowed grads(indices.size()), models(indices.size());
  std::vector<int64_t> made, waiting;
  for (size_t k = 0; k < indices.size(); ++k) {
    const size_t i = indices[k];
    const bool waits = is_pending() && pending_.grads[i].defined();
    const Tensor& grad = waits ? pending_.grads[i] : master_params_[i].grad();
    if (!grad.defined()) continue;
    grads.set(k, grad);
    if (is_separate(i)) models.set(k, model_params_[i]);
    (waits ? waiting : made).push_back(static_cast<int64_t>(k));
  }
  if (made.empty() && waiting.empty()) return;
  FusedStepper::Step step;
  if (skip.defined()) step.skip = skip;
  if (waiting.empty()) made.clear();
  if (!waiting.empty()) step.grad_factor = pending_.factor;
  stepper.step({grads, models, stepped_params(indices), made}, step);
  mark_synced();
}

/// What a stepper is to take for its parameters; empty where that is themselves.
std::vector<Tensor> MasterWeights::stepped_params(const std::vector<size_t>& indices) const {
  std::vector<Tensor> params;
  for (size_t k = 0; is_split() && k < indices.size(); ++k) {
    const size_t i = indices[k];
    params.push_back(is_split(i) ? remainders_[i] : master_params_[i]);
  }
  return params;
}

}  // namespace torchamp

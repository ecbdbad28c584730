#include "core/optimizer_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/autograd_meta.h"

namespace torchamp::core {
namespace {

using at::Tensor;

constexpr const char* kDroppedUnknown =
    ": expected a parameter to be in a group when its backward runs in scale_loss, got one that "
    "was "
    "added with a grad, which may be scaled, and is dropped; add parameters before their backward";

/// All OptimizerStates, for all threads.
class States {
 public:
  void add(OptimizerState* state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_.push_back(state);
  }

  void remove(OptimizerState* state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_.erase(std::find(states_.begin(), states_.end(), state));
  }

  /// The states that are not being destroyed.
  std::vector<std::shared_ptr<OptimizerState>> all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<OptimizerState>> all;
    for (OptimizerState* state : states_) {
      if (auto held = state->weak_from_this().lock()) all.push_back(std::move(held));
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<OptimizerState*> states_;
};

/// Never destroyed: states may outlive other statics.
States& states() {
  static auto& instance = *new States;
  return instance;
}

}  // namespace

OptimizerState::OptimizerState(std::shared_ptr<Masters> masters, std::shared_ptr<Observer> observer)
    : masters_(masters != nullptr ? std::move(masters) : std::make_shared<Masters>()),
      thread_(std::this_thread::get_id()),
      observer_(std::move(observer)) {
  states().add(this);
}

OptimizerState::~OptimizerState() {
  states().remove(this);
  for (const auto& param : params_) {
    auto& users = param->users;
    users.erase(std::find(users.begin(), users.end(), this));
  }
}

std::vector<std::shared_ptr<OptimizerState>> OptimizerState::others_than(
    const std::vector<std::shared_ptr<OptimizerState>>& given) {
  auto others = states().all();
  const auto is_left_out = [&](const auto& state) {
    return state->thread_ != std::this_thread::get_id() ||
           std::find(given.begin(), given.end(), state) != given.end();
  };
  others.erase(std::remove_if(others.begin(), others.end(), is_left_out), others.end());
  return others;
}

std::vector<Tensor> OptimizerState::model_params() const {
  std::vector<Tensor> models;
  for (const auto& param : params_) models.push_back(param->model);
  return models;
}

std::vector<Tensor> OptimizerState::master_params() const {
  std::vector<Tensor> masters;
  for (const auto& param : params_) masters.push_back(param->master);
  return masters;
}

bool OptimizerState::has_masters() const {
  return std::any_of(params_.begin(), params_.end(),
                     [](const auto& param) { return param->has_master(); });
}

bool OptimizerState::steps(const Param& param) const {
  return std::find(param.users.begin(), param.users.end(), this) != param.users.end();
}

void OptimizerState::add(const char* function, const Tensor& tensor, const Tensor& master,
                         bool makes_masters) {
  const auto known = param_of(tensor);
  if (known != nullptr && steps(*known)) return;
  if (known != nullptr) check_unowned(function, *known);
  begin_using(function, masters_->param_of(tensor, master, makes_masters));
  overflows_.append_param();
}

void check_unowned(const char* function, const Param& param) {
  TORCH_CHECK_VALUE(!param.has_master() || param.users.empty(), function,
                    ": expected a parameter that no other optimizer steps, since it has a float32 "
                    "master, got one of sizes ",
                    param.model.sizes(), " that another steps; ", kOneOwner);
}

/// A grad that it has already may be a scaled one.
void OptimizerState::begin_using(const char* function, const std::shared_ptr<Param>& param) {
  param->users.push_back(this);
  params_.push_back(param);
  if (!had_scaled_loss_) return;
  if (grad_of(param->model).defined()) warn_once(std::string(function) + kDroppedUnknown);
  param->model.mutable_grad().reset();
  param->grad.notice(shows_grads_);
}

void OptimizerState::follow(const char* function, at::TensorList held, bool makes_masters) {
  std::unordered_set<const c10::TensorImpl*> distinct;
  for (const Tensor& tensor : held) {
    TORCH_CHECK_VALUE(distinct.insert(tensor.unsafeGetTensorImpl()).second, function,
                      ": expected each parameter in one group, and once, got one of sizes ",
                      tensor.sizes(), " twice");
    const auto known = param_of(tensor);
    if (known != nullptr && !steps(*known)) check_unowned(function, *known);
  }
  warning_.clear();
  for (const Tensor& tensor : held) add(function, tensor, {}, makes_masters);
  std::unordered_map<const c10::TensorImpl*, int64_t> places;
  for (size_t i = 0; i < params_.size(); ++i) {
    places.emplace(params_[i]->model.unsafeGetTensorImpl(), static_cast<int64_t>(i));
  }
  std::vector<int64_t> kept;
  for (const Tensor& tensor : held) kept.push_back(places.at(tensor.unsafeGetTensorImpl()));
  keep(kept);
}

void OptimizerState::let_go(at::TensorList held) {
  std::unordered_set<const c10::TensorImpl*> named;
  for (const Tensor& tensor : held) named.insert(tensor.unsafeGetTensorImpl());
  std::vector<int64_t> kept;
  for (size_t i = 0; i < params_.size(); ++i) {
    const bool is_held = named.count(params_[i]->model.unsafeGetTensorImpl()) > 0;
    if (is_held) kept.push_back(static_cast<int64_t>(i));
  }
  if (kept.size() < params_.size()) keep(kept);
}

void OptimizerState::keep(const std::vector<int64_t>& kept) {
  overflows_.keep(kept, /*drops_others=*/kept.size() < params_.size());
  ParamList others = std::exchange(params_, {});
  for (const int64_t i : kept) params_.push_back(std::exchange(others[i], nullptr));
  for (const auto& param : others) {
    if (param != nullptr) retire(param);
  }
  masters_->forget_gone();
}

/// A grad that others step by stays.
void OptimizerState::retire(const std::shared_ptr<Param>& param) {
  auto& users = param->users;
  had_drops_ |= param->grad.has_contributed();
  if (users.size() == 1) {
    const GradState state = param->grad.state();
    const bool is_scaled = state == GradState::kScaled || state == GradState::kChecked;
    if (is_scaled) param->model.mutable_grad().reset();
    param->grad.zero();
  }
  users.erase(std::find(users.begin(), users.end(), this));
}

void OptimizerState::check_releasable() const {
  TORCH_CHECK(!is_in_backward(),
              "release: expected no scale_loss to be open, but one is; release after it");
}

void OptimizerState::bring_together() const {
  refresh();
  if (!masters_->adopts_data_writes()) return;
  for (const auto& param : params_) param->adopt_data_writes();
}

bool OptimizerState::grads_are_scaled() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    return param->grad.is_open() || param->grad.state() == GradState::kScaled;
  });
}

bool OptimizerState::grads_are_open() const {
  return is_open_ || std::any_of(params_.begin(), params_.end(),
                                 [](const auto& param) { return param->grad.is_open(); });
}

void OptimizerState::clear_overflows() {
  overflows_.clear();
  if (observer_ != nullptr) observer_->forget_backwards();
}

void OptimizerState::check_unscaled(const char* function) {
  if (!is_in_backward()) update_grads();
  TORCH_CHECK(!grads_are_scaled(), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss that is open or "
              "has delay_unscale, as in no_sync(); clip after the last scale_loss of the step");
  check_no_strays(function, /*set_aside=*/false);
}

void OptimizerState::note_zeroed() {
  at::NoGradGuard no_grad;
  for (const auto& param : params_) note_dropped(*param);
  had_drops_ = false;
  forget_backwards();
  clear_sharers();
}

/// Zeros that are in its place count.
void OptimizerState::note_dropped(Param& param) {
  Grad& grad = param.grad;
  const Tensor zeros = grad.is_open() ? Tensor() : grad_of(param.model);
  for (OptimizerState* user : param.users) user->had_drops_ |= grad.has_contributed();
  grad.zero();
  if (!zeros.defined()) return;
  param.model.mutable_grad() = zeros;
  set_grad_dtype(param.model);
}

/// Only states that have nothing left to skip are cleared.
void OptimizerState::clear_sharers() {
  for (const auto& param : params_) {
    for (OptimizerState* user : param->users) {
      if (user != this && !user->have_contributed()) user->clear_overflows();
    }
  }
}

/// After the grads of all have been zeroed.
void OptimizerState::forget_backwards() {
  scaling_.reset();
  factor_.reset();
  norm_.reset();
  overflows_.clear_flags();
  clear_overflows();
}

void OptimizerState::note_zeroed(const std::vector<Tensor>& model_params) {
  at::NoGradGuard no_grad;
  const auto contributed = std::count_if(params_.begin(), params_.end(), [](const auto& param) {
    return param->grad.has_contributed();
  });
  int64_t zeroed = 0;
  for (const Tensor& tensor : model_params) {
    const auto param = param_of(tensor);
    if (param == nullptr || !steps(*param)) continue;
    zeroed += param->grad.has_contributed();
    note_dropped(*param);
  }
  if (zeroed > 0 && zeroed == contributed) {
    had_drops_ = false;  // or the overflow of an open backward would be forgotten with them
    forget_backwards();
  }
  if (zeroed > 0) clear_sharers();
}

void OptimizerState::show_grads() {
  if (is_open_) return void(shows_grads_ = true);
  set_lazy(false);
  shows_grads_ = true;
  update_grads();
}

/// Parameters without a master keep their grads, as in PyTorch.
void OptimizerState::end_step(const std::vector<LossScaler*>& scalers) {
  if (observer_ != nullptr) observer_->after_step(scalers);
  const Tensor refused = overflows_.may_be_any() ? overflows_.found_inf() : Tensor();
  for (const auto& param : params_) param->grad.use(refused);
  forget_backwards();
}

void OptimizerState::warn_once(const std::string& warning) {
  if (warned_.insert(warning).second) warning_ = warning;
}

bool OptimizerState::have_contributed() const {
  return std::any_of(params_.begin(), params_.end(),
                     [](const auto& param) { return param->grad.has_contributed(); });
}

bool OptimizerState::lacks_grads() const {
  return !params_.empty() && std::none_of(params_.begin(), params_.end(), [](const auto& param) {
    return param->grad.is_usable();
  });
}

}  // namespace torchamp::core

#include "core/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/autograd_meta.h"
#include "core/outside_capture.h"

namespace torchamp::core {
namespace {

using at::Tensor;

constexpr const char* kWrittenBesideScaled =
    "zero_grad: expected the model to be written by the optimizer that initialize returned, got "
    "writes after a backward whose grads no step has used; these grads are scaled. If a second "
    "optimizer steps the model, make one optimizer of both, with two groups; if the program uses "
    "the grads itself, set materialize_master_grads to true";

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

Tensor indices_tensor(const std::vector<int64_t>& indices, at::Device device) {
  return at::tensor(indices, at::TensorOptions(at::kLong).device(device));
}

}  // namespace

OptimizerState::OptimizerState(bool shows_grads, std::shared_ptr<Observer> observer)
    : shows_grads_(shows_grads),
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

Tensor OptimizerState::add(const char* function, const Tensor& tensor, Tensor master,
                           bool keeps_masters) {
  auto param = param_of(tensor);
  const bool has_master = master.defined() || (param != nullptr && param->has_master());
  const bool is_low_precision = at::isReducedFloatingType(tensor.scalar_type());
  if (keeps_masters && is_low_precision && !has_master) master = make_master(tensor);
  if (param == nullptr || master.defined()) {
    param = make_param(tensor, master.defined() ? master : tensor);
  }
  if (steps(*param)) return param->master;
  check_free(function, *param);
  retired_.erase(std::remove(retired_.begin(), retired_.end(), param), retired_.end());
  param->users.push_back(this);
  params_.push_back(param);
  if (found_inf_per_param_.defined()) {
    found_inf_per_param_ = at::constant_pad_nd(found_inf_per_param_, {0, 1});
  }
  if (adopts_data_writes_) param->watch_data_writes();
  if (had_scaled_loss_) {
    param->model_grad().reset();
    param->grad = Grad();
  }
  return param->master;
}

void OptimizerState::check_free(const char* function, const Param& param) const {
  if (!steps(param)) check_unowned(function, param);
}

void check_unowned(const char* function, const Param& param) {
  TORCH_CHECK_VALUE(!param.has_master() || param.users.empty(), function,
                    ": expected a parameter that no other optimizer steps, since it has a float32 "
                    "master, got one of sizes ",
                    param.model.sizes(), " that another steps; ", kOneOwner);
}

void OptimizerState::retain(const char* function, at::TensorList held) {
  std::unordered_map<const c10::TensorImpl*, int64_t> places;
  for (size_t i = 0; i < params_.size(); ++i) {
    places.emplace(params_[i]->master.unsafeGetTensorImpl(), static_cast<int64_t>(i));
  }
  std::vector<int64_t> kept;
  for (const Tensor& tensor : held) {
    const auto place = places.find(tensor.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(place != places.end(), function,
                      ": expected each parameter in one group, and once, got one of sizes ",
                      tensor.sizes(), " twice");
    kept.push_back(place->second);
    places.erase(place);
  }
  if (found_inf_.defined() && !places.empty() && !shares_overflows_) {
    const Tensor theirs = overflow_of(kept);
    if (theirs.defined()) found_inf_ = at::minimum(found_inf_, theirs);
  }
  if (found_inf_per_param_.defined()) {
    const Tensor indices = indices_tensor(kept, found_inf_per_param_.device());
    found_inf_per_param_ = found_inf_per_param_.index_select(0, indices);
  }
  const ParamList before = std::exchange(params_, {});
  for (const int64_t i : kept) params_.push_back(before[i]);
  for (const auto& [tensor, i] : places) retire(before[i]);
  const auto is_gone = [](const auto& param) { return param->model.use_count() == 1; };
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(), is_gone), retired_.end());
}

void OptimizerState::let_go(at::TensorList held) {
  std::vector<std::shared_ptr<Param>> named;
  for (const Tensor& tensor : held) named.push_back(param_of(tensor));
  std::sort(named.begin(), named.end());
  std::vector<Tensor> kept;
  for (const auto& param : params_) {
    if (std::binary_search(named.begin(), named.end(), param)) kept.push_back(param->master);
  }
  if (kept.size() < params_.size()) retain("let_go", kept);
}

/// A grad that others step by stays.
void OptimizerState::retire(const std::shared_ptr<Param>& param) {
  auto& users = param->users;
  had_drops_ |= param->has_contributed();
  if (users.size() == 1) {
    const bool is_scaled =
        param->grad.state == GradState::kScaled || param->grad.state == GradState::kChecked;
    if (is_scaled) param->model_grad().reset();
    drop(*param);
  }
  users.erase(std::find(users.begin(), users.end(), this));
  if (param->has_master()) retired_.push_back(param);
}

void OptimizerState::adopt_data_writes() {
  adopts_data_writes_ = true;
  for (const auto& param : params_) param->watch_data_writes();
}

void OptimizerState::prepare_release() {
  TORCH_CHECK(!is_in_backward(),
              "release: expected no scale_loss to be open, but one is; release after it");
  for (const ParamList* params : {&params_, &retired_}) {
    core::refresh(*params);
    for (const auto& param : *params) param->adopt_data_writes();
  }
}

void OptimizerState::give_masters_back() const {
  core::give_masters_back(params_);
  core::give_masters_back(retired_);
}

bool OptimizerState::grads_are_scaled() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    return param->grad.state == GradState::kOpen || param->grad.state == GradState::kScaled;
  });
}

bool OptimizerState::grads_are_open() const {
  return is_open_ || std::any_of(params_.begin(), params_.end(), [](const auto& param) {
           return param->grad.state == GradState::kOpen;
         });
}

bool OptimizerState::has_overflowed() const {
  return found_inf_.defined() && found_inf_.item<float>() != 0.0f;
}

/// As far as the host knows without waiting, and without an op.
bool OptimizerState::may_have_overflowed() const {
  if (!found_inf_.defined() || !found_inf_.is_cpu()) return found_inf_.defined();
  return *found_inf_.const_data_ptr<float>() != 0.0f;
}

void OptimizerState::accumulate(const Tensor& found_inf, bool shares) {
  found_inf_ = found_inf_.defined() ? at::maximum(found_inf_, found_inf) : found_inf;
  shares_overflows_ |= shares;
}

void OptimizerState::clear_overflows() {
  found_inf_.reset();
  shares_overflows_ = false;
  if (observer_ != nullptr) observer_->forget_backwards();
}

/// float32 scalar, 1 if a grad of one of those parameters was not finite since the last step;
/// undefined: none was.
Tensor OptimizerState::overflow_of(const std::vector<int64_t>& indices) const {
  const Tensor& flags = found_inf_per_param_;
  if (!flags.defined()) return {};
  return flags.index_select(0, indices_tensor(indices, flags.device())).any().to(at::kFloat);
}

void OptimizerState::check_unscaled(const char* function) {
  if (!is_in_backward()) update_grads();
  TORCH_CHECK(!grads_are_scaled(), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss that is open or "
              "has delay_unscale, as in no_sync(); clip after the last scale_loss of the step");
  check_no_strays(function, /*set_aside=*/false);
}

void OptimizerState::zero_grad(bool set_to_none) {
  at::NoGradGuard no_grad;
  warn_once(has_written_beside_scaled() ? kWrittenBesideScaled : "");
  for (const auto& param : params_) zero_grad(*param, set_to_none);
  had_drops_ = false;
  forget_backwards();
  clear_sharers();
}

/// Only states that have nothing left to skip are cleared.
void OptimizerState::clear_sharers() {
  for (const auto& param : params_) {
    for (OptimizerState* user : param->users) {
      if (user != this && !user->have_contributed()) user->clear_overflows();
    }
  }
}

/// The optimizer's own zero_grad reaches the tensors that it steps.
void OptimizerState::zero_grad(Param& param, bool set_to_none) {
  const bool is_open = param.grad.state == GradState::kOpen;
  const Tensor grad = grad_of(param.model);
  const bool is_shared = grad.is_same(param.grad.unscaled);
  drop(param);
  if (!param.has_master() || !grad.defined()) return;
  param.model_grad().reset();
  if (set_to_none || is_open) return;
  take_over(param, (is_shared ? grad : grad.detach()).zero_());
}

/// After the grads of all have been zeroed.
void OptimizerState::forget_backwards() {
  scaling_.reset();
  factor_.reset();
  norm_.reset();
  found_inf_per_param_.reset();
  clear_overflows();
}

void OptimizerState::note_zeroed(const std::vector<Tensor>& model_params) {
  at::NoGradGuard no_grad;
  const auto contributed = std::count_if(
      params_.begin(), params_.end(), [](const auto& param) { return param->has_contributed(); });
  int64_t zeroed = 0;
  for (const Tensor& tensor : model_params) {
    const auto param = param_of(tensor);
    if (param == nullptr || !steps(*param)) continue;
    zeroed += param->has_contributed();
    zero_grad(*param, /*set_to_none=*/!grad_of(param->model).defined());
  }
  if (zeroed > 0 && zeroed == contributed) {
    had_drops_ = false;  // or the overflow of an open backward would be forgotten with them
    forget_backwards();
  }
  if (zeroed > 0) clear_sharers();
}

void OptimizerState::show_grads() {
  shows_grads_ = true;
  lend_grads(true);
}

/// Gives masters the grads that a step is to use, or takes them away.
void OptimizerState::lend_grads(bool lends) const {
  for (const auto& param : params_) {
    if (!param->has_master() || param->grad.state == GradState::kOpen) continue;
    param->master.mutable_grad() = lends ? param->grad.unscaled : Tensor();
  }
}

/// Parameters without a master keep their grads, as in PyTorch.
void OptimizerState::end_step(const std::vector<LossScaler*>& scalers) {
  if (observer_ != nullptr) observer_->after_step(scalers);
  const bool may_refuse = may_have_overflowed();
  for (const auto& param : params_) {
    if (!param->has_master()) {
      if (may_refuse) {
        param->refused = found_inf_;
        param->grad.left = Mark(grad_of(param->model));
      }
      continue;
    }
    param->master.mutable_grad().reset();
    const Mark used(grad_of(param->model));
    param->grad = Grad();
    param->grad.left = used;
  }
  forget_backwards();
}

void OptimizerState::warn_once(const std::string& warning) {
  warning_ = warning.empty() || !warned_.insert(warning).second ? "" : warning;
}

/// Whether the program has written the model while its grads were scaled for a fused step, also
/// through `.data()`, as LibTorch's optimizers do. May wait for the device, but no step has come.
bool OptimizerState::has_written_beside_scaled() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    if (param->grad.state != GradState::kChecked || param->is_master_ahead()) return false;
    return param->is_model_written() ||
           (!is_capturing(param->model.device()) && !param->is_rounded_master());
  });
}

bool OptimizerState::have_contributed() const {
  return std::any_of(params_.begin(), params_.end(),
                     [](const auto& param) { return param->has_contributed(); });
}

bool OptimizerState::lacks_grads() const {
  return !params_.empty() && std::none_of(params_.begin(), params_.end(), [](const auto& param) {
    if (!param->has_master()) return grad_of(param->model).defined();
    return param->grad.state == GradState::kUnscaled || param->grad.state == GradState::kChecked;
  });
}

}  // namespace torchamp::core

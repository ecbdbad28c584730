#include "core/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "ops/autograd_meta.h"

namespace torchamp::core {
namespace {

using at::Tensor;

constexpr const char* kDroppedUnknown =
    ": expected a parameter to be in a group when its backward runs in scale_loss, got one that "
    "was added with a grad, which may be scaled, and is dropped; add parameters before their "
    "backward";

constexpr const char* kLacksGrads =
    ": expected grads, got none, so nothing changes; run the backward, of a loss that reaches the "
    "optimizer's parameters, in scale_loss";

constexpr const char* kUnscaled =
    ": expected a backward in scale_loss before the first step, since the loss scale is dynamic, "
    "got grads of one outside of it, in which small numbers are lost to 16 bits; run it in "
    "scale_loss. If the program scales losses itself, give initialize a loss_scale of 1";

constexpr const char* kAssigned =
    ": expected grads of a backward in scale_loss, got grads that came after a scale_loss without "
    "one, and are not unscaled; assign those of the scaled loss in its scope, or assign those that "
    "torch.autograd.grad gives of the loss itself";

constexpr const char* kDataWritten =
    ": expected parameters to hold what initialize has left in them, or what was written in a way "
    "that PyTorch counts, got one of sizes ";

constexpr const char* kHowToWrite =
    " that was written through .data, which the step undoes; write it in "
    "amp.float32_params(model), in C++ amp::Float32Params, or initialize with adopt_data_writes";

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

/// Zeros that are in its place count.
void note_dropped(Param& param) {
  Grad& grad = param.grad;
  const Tensor zeros = grad.is_open() ? Tensor() : grad_of(param.model);
  if (grad.has_contributed()) {
    for (OptimizerState* user : param.users) user->grads().note_drop();
  }
  grad.zero();
  if (!zeros.defined()) return;
  param.model.mutable_grad() = zeros;
  set_grad_dtype(param.model);
}

/// Whether it was written through `.data` since master and model agreed. Waits for the device.
bool is_data_written(const std::shared_ptr<Param>& param) {
  const bool is_seen = !param->has_master() || param->is_borrowed || param->is_model_written();
  return !is_seen && !param->is_master_ahead() && !param->is_rounded_master();
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

bool OptimizerState::steps(const Param& param) const {
  return std::find(param.users.begin(), param.users.end(), this) != param.users.end();
}

void OptimizerState::add(const char* function, const Tensor& tensor, const Tensor& master) {
  const auto known = param_of(tensor);
  if (known != nullptr && steps(*known) && has_its_master(*known)) return;
  if (known != nullptr) check_unowned(function, *known);
  const auto param = masters_->param_of(tensor, master);
  param->users.push_back(this);
  params_.push_back(param);
  grads_.forget_seen();
  overflows_.append_param();
  if (scaled_loss_ == ScaledLoss::kNone) return;
  // A grad that it has already may be a scaled one.
  if (grad_of(tensor).defined()) warnings_.add(std::string(function) + kDroppedUnknown);
  tensor.mutable_grad().reset();
  param->grad.notice(/*shows=*/false);
}

void check_unowned(const char* function, const Param& param) {
  TORCH_CHECK_VALUE(!param.has_master() || param.users.empty(), function,
                    ": expected a parameter that no other optimizer steps, since it has a float32 "
                    "master, got one of sizes ",
                    param.model.sizes(), " that another steps; ", kOneOwner);
}

void OptimizerState::follow(const char* function, at::TensorList held) {
  std::unordered_set<const c10::TensorImpl*> distinct;
  for (const Tensor& tensor : held) {
    TORCH_CHECK_VALUE(distinct.insert(tensor.unsafeGetTensorImpl()).second, function,
                      ": expected each parameter in one group, and once, got one of sizes ",
                      tensor.sizes(), " twice");
    const auto known = param_of(tensor);
    if (known != nullptr && !steps(*known)) check_unowned(function, *known);
  }
  warnings_.clear();
  for (const Tensor& tensor : held) add(function, tensor);
  std::unordered_map<const c10::TensorImpl*, int64_t> places;
  for (size_t i = 0; i < params_.size(); ++i) places[params_[i]->model.unsafeGetTensorImpl()] = i;
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
  grads_.forget_seen();
  ParamList others = std::exchange(params_, {});
  for (const int64_t i : kept) params_.push_back(std::exchange(others[i], nullptr));
  for (const auto& param : others) {
    if (param == nullptr) continue;
    auto& users = param->users;
    if (param->grad.has_contributed()) grads_.note_drop();
    if (users.size() == 1) {  // a grad that others step by stays
      const GradState state = param->grad.state();
      const bool is_scaled = state == GradState::kScaled || state == GradState::kChecked;
      if (is_scaled) param->model.mutable_grad().reset();
      param->grad.zero();
    }
    users.erase(std::find(users.begin(), users.end(), this));
  }
  masters_->forget_gone();
}

void OptimizerState::check_releasable() const {
  TORCH_CHECK(!is_in_backward(),
              "release: expected no scale_loss to be open, but one is; release after it");
}

void OptimizerState::clear_overflows() {
  overflows_.clear();
  if (observer_ != nullptr) observer_->forget_backwards();
}

void OptimizerState::update_grads() {
  const c10::InferenceMode off(false);  // what it makes is written outside of it
  thread_ = std::this_thread::get_id();
  if (grads_.update()) forget_backwards();
}

void OptimizerState::check_unscaled(const char* function) {
  if (!is_in_backward()) update_grads();
  TORCH_CHECK(!grads_.are_scaled(), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss that is open or "
              "has delay_unscale, as in no_sync(); clip after the last scale_loss of the step");
  grads_.check_no_strays(function, /*set_aside=*/false);
}

void OptimizerState::note_zeroed() {
  const at::NoGradGuard no_grad;
  for (const auto& param : params_) note_dropped(*param);
  end_zeroing(/*all=*/true);
}

/// Where not all are zeroed, the overflows of those stay until the rest is.
void OptimizerState::note_zeroed(const std::vector<Tensor>& model_params) {
  const at::NoGradGuard no_grad;
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
  if (zeroed > 0) end_zeroing(zeroed == contributed);
}

/// Other optimizers that have nothing left to skip skip nothing.
void OptimizerState::end_zeroing(bool all) {
  if (all) forget_backwards();
  for (const auto& param : params_) {
    for (OptimizerState* user : param->users) {
      if (user != this && !user->grads().have_contributed()) user->clear_overflows();
    }
  }
}

/// After the grads of all have been zeroed or used.
void OptimizerState::forget_backwards() {
  grads_.forget();
  clear_overflows();
}

void OptimizerState::note_scaled_loss() {
  const bool has_grads = !grads_.are_missing() || grads_.are_scaled();
  scaled_loss_ = has_grads ? ScaledLoss::kWithGrads : ScaledLoss::kWithoutGrads;
}

void OptimizerState::show_grads() {
  for (const auto& param : params_) {
    param->master.set_requires_grad(param->model.requires_grad());
  }
  if (!is_in_backward_) update_grads();
  grads_.show();
  if (!is_in_backward_) update_grads();
}

void OptimizerState::begin_step(const char* function, bool needs_scale) {
  TORCH_CHECK(!is_in_backward(), function,
              ": expected the optimizer not to be inside an open scale_loss, but it is; "
              "step after it, where the grads are unscaled");
  update_grads();
  TORCH_CHECK(!grads_.are_scaled(), function,
              ": expected unscaled grads, got grads still scaled by a scale_loss with "
              "delay_unscale, as in no_sync(); run one without it before the step");
  grads_.check_no_strays(function, /*set_aside=*/true);
  warnings_.clear();
  if (grads_.are_missing()) {
    warnings_.add(std::string(function) + kLacksGrads);
  } else if (scaled_loss_ == ScaledLoss::kWithoutGrads) {
    warnings_.add(std::string(function) + kAssigned);
  } else if (needs_scale && scaled_loss_ == ScaledLoss::kNone) {
    warnings_.add(std::string(function) + kUnscaled);
  }
  // Code that begins by data, such as ActNorm's, runs in the first forward.
  if (std::exchange(has_stepped_, true) || masters_->adopts_data_writes()) return;
  const auto written = std::find_if(params_.begin(), params_.end(), is_data_written);
  if (written == params_.end()) return;
  warnings_.add(c10::str(function, kDataWritten, (*written)->model.sizes(), kHowToWrite));
}

/// Parameters without a master keep their grads, as in PyTorch.
void OptimizerState::end_step(const std::vector<LossScaler*>& scalers,
                              std::optional<bool> overflowed) {
  if (observer_ != nullptr) observer_->after_step(scalers);
  Tensor refused = overflows_.may_be_any() ? overflows_.found_inf() : Tensor();
  if (overflowed) refused = *overflowed ? refused.cpu() : Tensor();
  for (const auto& param : params_) param->grad.use(refused);
  forget_backwards();
}

}  // namespace torchamp::core

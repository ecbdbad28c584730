// The part of Session that makes its models and optimizers plain again.
#include <torchamp/cast.h>

#include <utility>

#include "frontend/checkpoint/kinds.h"
#include "frontend/optim/fused_steppers.h"
#include "frontend/session.h"
#include "frontend/skip_messages.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::optim::OptimizerParamState;

/// A tensor that the level cast and gave no master, and its value.
struct Widened {
  Tensor tensor;
  Tensor value;  ///< float32
};

/// An optimizer's state of such a parameter, in float32.
struct WidenedState {
  torch::optim::Optimizer& optimizer;
  void* key;
  std::unique_ptr<OptimizerParamState> state;
};

/// Empty if the optimizer has no state of `param`, or has it in float32 already, as fused ones do.
/// Throws RuntimeError for a class whose states torchamp does not know.
std::vector<WidenedState> widened_state(torch::optim::Optimizer& optimizer, const Widened& param) {
  std::vector<WidenedState> widened;
  void* const key = param.tensor.unsafeGetTensorImpl();
  const auto found = optimizer.state().find(key);
  const bool is_fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer) != nullptr;
  if (is_fused || found == optimizer.state().end()) return widened;
  const checkpoint::Kind* kind = checkpoint::kind_of(optimizer);
  TORCH_CHECK(kind != nullptr,
              "release: expected an optimizer whose states torchamp can convert to float32: "
              "LibTorch's SGD, Adam, AdamW, Adagrad or RMSprop, or torchamp's; got another");
  const checkpoint::StateOwner owner{param.value, optimizer.defaults(), nullptr};
  widened.push_back(
      {optimizer, key, kind->read_state(kind->saved(*found->second), owner, "state")});
  return widened;
}

void drop_grads(torch::nn::Module& model) {
  for (const Tensor& param : model.parameters()) param.mutable_grad().reset();
}

}  // namespace

void Session::check_not_released() const {
  TORCH_CHECK(!is_released_,
              "amp: expected a model and optimizers in training, got those of an initialize that "
              "was released; use what initialize was given, or initialize it again");
}

std::vector<WrappedOptimizer*> Session::living_optimizers() {
  std::vector<WrappedOptimizer*> living;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    if (optimizers_[i].is_alive()) living.push_back(&optimizer(i));
  }
  return living;
}

std::vector<Tensor> cast_without_master(const Session& session) {
  std::vector<Tensor> cast;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const Tensor& tensor) {
    const bool is_cast = tensor.defined() &&
                         tensor.scalar_type() == session.properties().cast_model_type &&
                         c10::isReducedFloatingType(tensor.scalar_type());
    if (!is_cast) return;
    const bool is_new = seen.insert(tensor.unsafeGetTensorImpl()).second;
    const auto param = core::param_of(tensor);
    const bool has_master = param != nullptr && param->has_master();
    if (is_new && !has_master) cast.push_back(tensor);
  };
  for (const auto& model : session.models()) {
    for (const Tensor& param : model->parameters()) add(param);
    for (const Tensor& buffer : model->buffers()) add(buffer);
  }
  return cast;
}

void Session::release() {
  TORCH_CHECK(!models_.empty(),
              "release: expected a model that initialize returned, got one of cast_for_inference");
  if (!enabled() || is_released_) return;
  TORCH_CHECK(!is_lent(),
              "release: expected no Float32Params to be open, but one is; release after it");
  give_back();
  forget_rounded(models_);
  casts_.close();
  is_released_ = true;
}

/// Not close(), which the end of the InferenceMode would undo.
void Session::give_back() {
  const torch::NoGradGuard no_grad;
  const c10::InferenceMode off(false);
  const auto optimizers = living_optimizers();
  for (const auto& optimizer : optimizers_) optimizer.state->check_releasable();
  masters_->prepare_release();
  std::vector<Widened> widened;
  std::vector<WidenedState> states;
  for (const Tensor& tensor : cast_without_master(*this)) {
    widened.push_back({tensor, tensor.variable_data().to(at::kFloat)});
    for (const WrappedOptimizer* optimizer : optimizers) {
      for (auto& state : widened_state(*optimizer->wrapped, widened.back())) {
        states.push_back(std::move(state));
      }
    }
  }
  for (const WrappedOptimizer* optimizer : optimizers) {
    report_skipped_steps(*this, *optimizer);
    optimizer->wrapped->zero_grad();
    optimizer->state->note_zeroed();
  }
  for (const auto& model : models_) drop_grads(*model);
  masters_->give_back();
  for (const auto& [tensor, value] : widened) core::set_data(tensor, value);
  for (auto& [optimizer, key, state] : states) optimizer.state()[key] = std::move(state);
  for (const WrappedOptimizer* optimizer : optimizers) {
    if (optimizer->fused != nullptr) optimizer->fused->steppers()->clear();
  }
  for (auto& optimizer : optimizers_) optimizer.state = std::make_shared<core::OptimizerState>();
  for (const auto& model : models_) flatten_recurrent(*model);
}

}  // namespace torchamp

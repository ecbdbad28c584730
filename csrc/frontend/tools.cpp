#include <torchamp/detail/tools.h>

#include <algorithm>

#include "autocast/open_autocast.h"
#include "frontend/checkpoint/kinds.h"
#include "frontend/session.h"
#include "ops/outside_capture.h"

namespace torchamp::detail {

std::vector<SteppedParam> stepped_params(const Optimizer& optimizer) {
  return stepped_params(*wrapped_of(optimizer).state);
}

std::vector<SteppedParam> stepped_params(const core::OptimizerState& state) {
  std::vector<SteppedParam> params;
  for (const auto& param : state.params()) {
    const bool is_checked = param->grad.state() == core::GradState::kChecked;
    params.push_back({param->model, param->master,
                      param->grad.is_usable() ? param->model.grad() : at::Tensor(),
                      is_checked ? state.factor() : at::Tensor(), state.lazy()});
  }
  return params;
}

std::vector<at::Tensor> state_tensors(const char* function,
                                      const torch::optim::Optimizer& optimizer,
                                      const at::Tensor& param) {
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  const checkpoint::Kind* kind = checkpoint::kind_of(optimizer);
  TORCH_CHECK(
      kind != nullptr, function,
      ": expected an optimizer of torch::optim or torchamp::optim, got one of another class, whose "
      "state is unknown");
  std::vector<at::Tensor> tensors;
  for (const auto& entry : kind->saved(*found->second)) {
    const auto& value = entry.value();
    if (value.isTensor() && value.toTensor().sizes() == param.sizes()) {
      tensors.push_back(value.toTensor());
    }
  }
  return tensors;
}

void observe(const Optimizer& optimizer, const std::shared_ptr<StepObserver>& observer) {
  auto& observers = wrapped_of(optimizer).observers;
  const auto is_gone = [](const auto& each) { return each.expired(); };
  observers.erase(std::remove_if(observers.begin(), observers.end(), is_gone), observers.end());
  observers.push_back(observer);
}

bool is_capturing(at::Device device) {
  return torchamp::is_capturing(device);
}

bool is_released(const Amp& amp) {
  return amp.session().is_released();
}

void backward_without_casts(const at::Tensor& loss) {
  const ShieldBackward shield;
  loss.backward();
}

}  // namespace torchamp::detail

#include "core/masters.h"

#include <algorithm>
#include <utility>

namespace torchamp::core {

using at::Tensor;

void Masters::adopt_data_writes() {
  adopts_data_writes_ = true;
  for (const auto& param : params_) param->watch_data_writes();
}

void Masters::bring_together(const ParamList& params) const {
  refresh(params);
  if (!adopts_data_writes_) return;
  for (const auto& param : params) param->adopt_data_writes();
}

std::shared_ptr<Param> Masters::param_of(const Tensor& tensor, Tensor master) {
  const auto known = core::param_of(tensor);
  const bool makes_master = makes_master_of(tensor) && (known == nullptr || !known->has_master());
  if (known != nullptr && !master.defined() && !makes_master) return known;
  if (!master.defined()) master = makes_master ? make_master(tensor) : tensor;
  const auto param = make_param(tensor, master);
  if (!param->has_master()) return param;
  params_.push_back(param);
  if (adopts_data_writes_) param->watch_data_writes();
  return param;
}

void Masters::forget_gone() {
  const auto is_gone = [](const auto& param) { return param->is_gone(); };
  params_.erase(std::remove_if(params_.begin(), params_.end(), is_gone), params_.end());
}

void Masters::prepare_release() const {
  for (const auto& param : params_) {
    if (param->model.element_size() == 2) param->check_model();  // else the program has widened it
  }
  publish_masters(params_);
  for (const auto& param : params_) param->adopt_data_writes();
}

void Masters::give_back() {
  for (const auto& param : std::exchange(params_, {})) {
    param->model.mutable_grad().reset();
    set_grad_dtype(param->model);
    set_data(param->model, param->master.variable_data());
  }
}

}  // namespace torchamp::core

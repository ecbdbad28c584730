#include "optim/step_hyper.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace torchamp {

void StepHyper::set(const std::vector<Row>& rows) {
  lrs_.assign(rows.size(), at::Tensor());
  if (rows == rows_) return;
  rows_ = rows;
  tensor_ = at::empty({static_cast<int64_t>(rows.size()), kHyperparameters}, at::kDouble);
  std::copy_n(rows.front().data(), tensor_.numel(), tensor_.mutable_data_ptr<double>());
}

void StepHyper::set_lr(int64_t group, const at::Tensor& lr, at::Device device) {
  if (lr.is_cpu() && !device.is_cpu()) {
    rows_[group][0] = lr.item<double>();
    tensor_.mutable_data_ptr<double>()[group * kHyperparameters] = rows_[group][0];
    return;
  }
  const bool is_float = lr.scalar_type() == at::kFloat || lr.scalar_type() == at::kDouble;
  lrs_[group] = lr.to(device, is_float ? lr.scalar_type() : at::kDouble, /*non_blocking=*/true);
}

bool StepHyper::has(size_t column) const {
  return std::any_of(rows_.begin(), rows_.end(),
                     [=](const Row& row) { return row[column] != 0.0; });
}

}  // namespace torchamp

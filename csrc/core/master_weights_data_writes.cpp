// The part of MasterWeights that compares what the model holds with the masters.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <torchamp/master_weights.h>

namespace torchamp {
namespace {

using at::Tensor;

/// Whether 16-bit tensors of equal sizes hold the same; four elements at a time, where torch would
/// take them one by one.
bool equal_halves(const Tensor& one, const Tensor& other) {
  const auto is_aligned = [](const Tensor& t) {
    return t.is_contiguous() && t.storage_offset() % 4 == 0 && t.numel() % 4 == 0;
  };
  if (one.itemsize() != 2 || !is_aligned(one) || !is_aligned(other)) return at::equal(one, other);
  return at::equal(one.view(-1).view(at::kLong), other.view(-1).view(at::kLong));
}

}  // namespace

bool MasterWeights::is_rounded_master(const Tensor& model_param) const {
  const Tensor master = master_value(model_param);
  return master.defined() && at::equal(master.to(model_param.scalar_type()), model_param);
}

Tensor MasterWeights::held_value(const Tensor& model_param) const {
  at::NoGradGuard no_grad;
  const Tensor master = master_value(model_param), held = model_param.detach();
  if (!master.defined()) return {};
  return at::where(master.to(held.scalar_type()).eq(held), master, held.to(at::kFloat));
}

bool MasterWeights::holds_master(size_t i) const {
  const Tensor& model = model_params_[i];
  if (is_split(i)) return is_rounded_master(model);
  return equal_halves(master_params_[i].detach().to(model.scalar_type()), model.detach());
}

void MasterWeights::adopt_data_writes() {
  at::NoGradGuard no_grad;
  for (const size_t i : separate_) {
    const Tensor& model = model_params_[i];
    if (model.is_cpu() && holds_master(i)) continue;
    set_master_value(model, held_value(model));
    mark_synced(model);
  }
}

}  // namespace torchamp

#include "ops/finish_backward.h"

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/ending_list.h"
#include "ops/scale_rule.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  m.def(
      "_finish_backward(Tensor[] scaled_grads, Tensor(a!)[] master_grads, Tensor loss_scale, "
      "bool accumulate, Tensor(b!) raised, Tensor(c!)[] ending, bool adds_per_tensor, "
      "float[] rule) -> ()");
}

EndingList list_of(const BackwardEnding& ending) {
  EndingList list;
  list[kFoundInf] = ending.found_inf;
  list[kInvScale] = ending.inv_scale;
  list[kPerTensor] = ending.per_tensor;
  list[kFoundBefore] = ending.found_before;
  list[kNorm] = ending.norm;
  list[kReport] = ending.report;
  if (ending.moved == nullptr) return list;
  list[kMovedScale] = ending.moved->loss_scale;
  list[kGrowthTracker] = ending.moved->growth_tracker;
  list[kHysteresisTracker] = ending.moved->hysteresis_tracker;
  return list;
}

}  // namespace

Tensor make_raised(int64_t length, at::Device device) {
  return at::zeros({kRaisedHeader + length}, at::TensorOptions(at::kByte).device(device));
}

void pass_over_grads(TensorList scaled_grads, TensorList master_grads, const Tensor& loss_scale,
                     bool accumulate, const Tensor& raised, const BackwardEnding* ending) {
  check_scalar("scale_loss", "loss_scale", loss_scale, at::kFloat, raised.device());
  static const auto op =
      find<void(TensorList, TensorList, const Tensor&, bool, const Tensor&, TensorList, bool,
                at::ArrayRef<double>)>("torchamp::_finish_backward");
  const EndingList ends = ending != nullptr ? list_of(*ending) : EndingList();
  const bool moves = ending != nullptr && ending->moved != nullptr;
  const auto rule = moves ? values_of(ending->moved->rule) : RuleValues();
  call(op, raised, scaled_grads, master_grads, loss_scale, accumulate, raised,
       ending != nullptr ? TensorList(ends) : TensorList(),
       ending != nullptr && ending->adds_per_tensor, rule);
  mark_written(master_grads);
  mark_written(TensorList(ends).slice(0, kFoundBefore));
}

}  // namespace torchamp

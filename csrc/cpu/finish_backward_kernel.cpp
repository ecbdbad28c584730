#include "backends/kernels.h"

namespace torchamp::cpu {
namespace {

Plan make_plan(int lists, int64 tensors) {
  Plan plan;
  plan.lists = lists;
  plan.data.reserve(lists * tensors);
  plan.dtypes.reserve(lists * tensors);
  plan.offsets.reserve(tensors + 1);
  plan.positions.reserve(tensors);
  return plan;
}

void append(Plan& plan, const Plan& from, int64 tensor) {
  for (int list = 0; list < plan.lists; ++list) {
    plan.data.push_back(from.address(tensor, list));
    plan.dtypes.push_back(from.dtype(tensor, list));
  }
  plan.offsets.push_back(plan.elements() + from.offsets[tensor + 1] - from.offsets[tensor]);
  plan.positions.push_back(from.positions[tensor]);
}

/// The grads that get a master grad, and those that are only checked.
struct Parts {
  explicit Parts(const Plan& plan)
      : written(make_plan(2, plan.tensors())), checked(make_plan(1, plan.tensors())) {
    for (int64 t = 0; t < plan.tensors(); ++t) {
      append(plan.address(t, 1) == nullptr ? checked : written, plan, t);
    }
  }

  Plan written;
  Plan checked;
};

}  // namespace

void finalize(const Finalization& end) {
  for (int32 i = 0; i < end.positions; ++i) finalize_position(end, i);
  finalize_scalars(end);
}

void finish_backward(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags,
                     const Finalization& end) {
  const Parts parts(plan);
  if (parts.written.tensors() > 0) unscale(parts.written, inv_scale, accumulate, flags);
  if (end.norm != nullptr) {
    l2norm(parts.checked, end.norm, nullptr, flags, nullptr);
  } else if (parts.checked.tensors() > 0) {
    check(parts.checked, flags);
  }
  if (end.ticket != nullptr) finalize(end);
}

}  // namespace torchamp::cpu

#include "inspect/reduction.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <type_traits>

namespace torchamp::inspect {
namespace {

constexpr const char* kProducts[] = {"aten::mm",      "aten::addmm",  "aten::bmm",
                                     "aten::baddbmm", "aten::linear", "aten::matmul"};

/// cuBLAS's switch is a bool in older versions of torch.
template <class Switch>
bool is_on(Switch reduces) {
  if constexpr (std::is_same_v<Switch, bool>) {
    return reduces;
  } else {
    return reduces == Switch::AllowReducedPrecisionWithSplitK;
  }
}

}  // namespace

bool is_half_product(const at::RecordFunction& record) {
  const auto name = record.operator_name();
  const auto is_named = [&name](const char* product) { return name->name == product; };
  return name && name->overload_name.empty() &&
         std::any_of(std::begin(kProducts), std::end(kProducts), is_named) &&
         record.inputs().front().toTensor().scalar_type() == at::kHalf;
}

bool float32_sums_are_finite(const at::RecordFunction& record, torch::jit::Stack arguments) {
  if (!is_on(at::globalContext().allowFP16ReductionCuBLAS())) return false;
  for (c10::IValue& argument : arguments) {
    if (argument.isTensor()) argument = argument.toTensor().to(at::kFloat);
  }
  c10::Dispatcher::singleton().findSchema(*record.operator_name())->callBoxed(arguments);
  return at::isfinite(arguments.front().toTensor().to(at::kHalf)).all().item<bool>();
}

}  // namespace torchamp::inspect

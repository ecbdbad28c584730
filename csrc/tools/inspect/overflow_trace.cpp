#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <torchamp/overflow_trace.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

#include "inspect/first_overflow.h"
#include "inspect/reduction.h"

namespace torchamp {
namespace inspect {
namespace {

/// Whether the inputs of an op are finite, and how large.
struct Inputs : at::ObserverContext {
  bool are_finite = true;
  double magnitude = 0;
  torch::jit::Stack of_product;  ///< the arguments of a float16 product; empty for other ops
};

bool is_infinite_number(const c10::IValue& value) {
  return value.isDouble() && !std::isfinite(value.toDouble());
}

bool is_finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

std::optional<at::Tensor> first_infinite(const std::vector<c10::IValue>& outputs) {
  for (const auto& output : outputs) {
    for (const auto& tensor : tensors_of(output)) {
      if (is_examined(tensor) && !is_finite(tensor)) return tensor;
    }
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<at::ObserverContext> FirstOverflow::before(const WatchedOp& op) {
  if (origin()) return nullptr;
  const Unobserved guard;
  const auto inputs = op.record.inputs();
  auto begun = std::make_unique<Inputs>();
  begun->are_finite = std::none_of(inputs.begin(), inputs.end(), is_infinite_number);
  for (const auto& input : inputs) {
    for (const auto& tensor : tensors_of(input)) {
      if (!begun->are_finite || !is_examined(tensor)) continue;
      begun->are_finite = is_finite(tensor);
      begun->magnitude = std::max(begun->magnitude, tensor.abs().max().item().toDouble());
    }
  }
  if (is_half_product(op.record)) begun->of_product.assign(inputs.begin(), inputs.end());
  return begun;
}

void FirstOverflow::after(const WatchedOp& op, const at::ObserverContext* begun) {
  const auto* inputs = static_cast<const Inputs*>(begun);
  if (inputs == nullptr || !inputs->are_finite || origin() || allocates(op.name)) return;
  const Unobserved guard;
  const auto tensor = first_infinite(op.record.outputs());
  if (!tensor) return;
  const bool is_nan = at::isnan(*tensor).any().item<bool>();
  OverflowOrigin found{op.name,          op.scope, op.is_backward, is_nan, tensor->scalar_type(),
                       inputs->magnitude};
  if (!inputs->of_product.empty()) {
    found.is_reduced = float32_sums_are_finite(op.record, inputs->of_product);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!origin_) origin_ = std::move(found);
}

std::optional<OverflowOrigin> FirstOverflow::origin() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return origin_;
}

void FirstOverflow::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  origin_.reset();
}

std::ostream& print_op(std::ostream& stream, const OverflowOrigin& origin) {
  stream << (origin.op == "_to_copy" ? "a cast" : origin.op);
  if (!origin.scope.empty()) stream << " of \"" << origin.scope << '"';
  return stream << " in the " << (origin.is_backward ? "backward" : "forward") << " makes "
                << (origin.is_nan ? "nan" : "inf") << " in " << origin.dtype << " of inputs up to "
                << origin.magnitude;
}

const char* remedy(const OverflowOrigin& origin) {
  if (!origin.is_reduced) return "";
  return "; float32 sums avoid it: "
         "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False, in C++ "
         "at::globalContext().setAllowFP16ReductionCuBLAS(false)";
}

}  // namespace inspect

std::ostream& operator<<(std::ostream& stream, const OverflowOrigin& origin) {
  return inspect::print_op(stream, origin) << inspect::remedy(origin);
}

struct OverflowTrace::Watch {
  std::shared_ptr<inspect::FirstOverflow> first = std::make_shared<inspect::FirstOverflow>();
  inspect::OpWatch ops{first, "OverflowTrace"};
};

OverflowTrace::OverflowTrace() : watch_(std::make_unique<Watch>()) {}

OverflowTrace::~OverflowTrace() = default;

std::optional<OverflowOrigin> OverflowTrace::origin() const {
  return watch_->first->origin();
}

void OverflowTrace::reset() {
  watch_->first->reset();
}

}  // namespace torchamp

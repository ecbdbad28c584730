#include "inspect/same_dropout.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/native_dropout_ops.h>

#include <atomic>
#include <optional>
#include <tuple>

#include "inspect/op_watch.h"

namespace torchamp::inspect {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

/// Ops that CUDA has fused kernels with dropout for, of some dtypes and sizes.
constexpr const char* kFused[] = {
    "scaled_dot_product_attention",
    "gru.input",
    "gru.data",
    "lstm.input",
    "lstm.data",
    "rnn_relu.input",
    "rnn_relu.data",
    "rnn_tanh.input",
    "rnn_tanh.data",
};

std::atomic<bool> has_left_out{false};

DispatchKeySet below(DispatchKey key, DispatchKeySet keys) {
  return keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key);
}

/// In BackendSelect, which ops come by between autograd and the device's kernel. That of CUDA draws
/// as many numbers at once as elements of the dtype fit into a vector.
std::tuple<at::Tensor, at::Tensor> drop_in_float32(DispatchKeySet keys, const at::Tensor& x,
                                                   double p, std::optional<bool> train) {
  const Unobserved guard;
  const auto [y, mask] = at::_ops::native_dropout::redispatch(
      below(DispatchKey::BackendSelect, keys), x.to(at::toOpMathType(x.scalar_type())), p, train);
  return {y.to(x.scalar_type()), mask};
}

/// In AutogradCUDA, below which an op chooses its kernel.
void leave_out_dropout(const c10::OperatorHandle& op, DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto of_attention = schema.argumentIndexWithName("dropout_p");
  const int index = of_attention ? *of_attention : *schema.argumentIndexWithName("dropout");
  c10::IValue& p = torch::jit::peek(*stack, index, schema.arguments().size());
  if (p.toDouble() > 0) has_left_out = true;
  p = 0.0;
  op.redispatchBoxed(below(DispatchKey::AutogradCUDA, keys), stack);
}

}  // namespace

SameDropout::SameDropout()
    : library_(torch::Library::IMPL, "aten", std::nullopt, __FILE__, __LINE__) {
  has_left_out = false;
  library_.impl("native_dropout",
                torch::dispatch(DispatchKey::BackendSelect, TORCH_FN(drop_in_float32)));
  for (const char* name : kFused) {
    library_.impl(name,
                  torch::dispatch(DispatchKey::AutogradCUDA,
                                  torch::CppFunction::makeFromBoxedFunction<&leave_out_dropout>()));
  }
}

std::string SameDropout::note() {
  if (!has_left_out) return "";
  return "The dropout of scaled_dot_product_attention and of recurrent layers was left out: on "
         "CUDA each iteration draws another mask.";
}

}  // namespace torchamp::inspect

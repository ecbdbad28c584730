#include "autocast/rules.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_cudnn_rnn_flatten_weight.h>
#include <ATen/ops/cudnn_is_acceptable.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <string>

namespace torchamp::autocast_rules {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

bool is_16_bit(c10::ScalarType dtype) {
  return dtype == c10::kHalf || dtype == c10::kBFloat16;
}

/// Calls `visit` with every tensor among the arguments, those in lists included.
template <typename Visit>
void for_each_tensor(const Call& call, Visit visit) {
  for (const c10::IValue* argument = call.first; argument != call.end; ++argument) {
    if (argument->isTensor()) {
      visit(argument->toTensor());
    } else if (argument->isTensorList()) {
      for (const at::Tensor& tensor : argument->toTensorVector()) visit(tensor);
    }
  }
}

at::Tensor cast(const Call& call, const at::Tensor& tensor, c10::ScalarType dtype) {
  const bool casts = is_castable(call.device_type, tensor) && tensor.scalar_type() != dtype;
  return casts ? tensor.to(dtype) : tensor;
}

void cast_argument(const Call& call, c10::IValue& argument, c10::ScalarType dtype) {
  if (argument.isTensor()) {
    argument = cast(call, argument.toTensor(), dtype);
  } else if (argument.isTensorList()) {
    auto tensors = argument.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = cast(call, tensor, dtype);
    argument = std::move(tensors);
  }
}

void cast_all(const Call& call, c10::ScalarType dtype) {
  for (auto* argument = call.first; argument != call.end; ++argument) {
    cast_argument(call, *argument, dtype);
  }
}

void cast_all_but_self(const Call& call, c10::ScalarType dtype) {
  for (auto* argument = call.first + 1; argument != call.end; ++argument) {
    cast_argument(call, *argument, dtype);
  }
}

/// The number of gates of a recurrent layer, and cuDNN's of its kind.
struct RecurrentLayer {
  int64_t gates, mode;
};

RecurrentLayer layer_of(const std::string& op) {
  if (op == "aten::lstm") return {4, 2};
  if (op == "aten::gru") return {3, 3};
  return {1, op == "aten::rnn_tanh" ? 1 : 0};
}

/// The floating types among a call's tensors that rules cast.
struct ArgumentTypes {
  bool are_mixed() const { return dim_of_float >= 0 && dim_of_16_bit >= 0; }
  /// Whether they are mixed, and torch's own promotion, to which a 0-dim tensor does not count
  /// beside others, gives 16 bits.
  bool are_promoted_to_16_bit() const { return dim_of_float == 0 && dim_of_16_bit > 0; }

  int64_t dim_of_float = -1, dim_of_16_bit = -1;  ///< the largest; -1: there is none
};

ArgumentTypes types_of(const Call& call) {
  ArgumentTypes types;
  for_each_tensor(call, [&](const at::Tensor& tensor) {
    if (!is_castable(call.device_type, tensor)) return;
    int64_t& dim = is_16_bit(tensor.scalar_type()) ? types.dim_of_16_bit : types.dim_of_float;
    dim = std::max(dim, tensor.dim());
  });
  return types;
}

/// Whether the program passed the dtype of the result.
bool has_chosen_dtype(const Call& call) {
  const auto index = call.op.schema().argumentIndexWithName("dtype");
  return index && !call.first[*index].isNone();
}

}  // namespace

DispatchKey key_of(c10::DeviceType device_type) {
  return device_type == c10::kCUDA ? DispatchKey::AutocastCUDA : DispatchKey::AutocastCPU;
}

c10::DeviceType device_type_of(DispatchKey key) {
  return key == DispatchKey::AutocastCUDA ? c10::kCUDA : c10::kCPU;
}

bool is_castable(c10::DeviceType device_type, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != device_type) return false;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return false;
  return tensor.scalar_type() == c10::kFloat || is_16_bit(tensor.scalar_type());
}

bool is_inside_of_an_op() {
  const auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  return excluded.has(DispatchKey::AutogradFunctionality) && !c10::InferenceMode::is_enabled();
}

void to_low_precision(const Call& call) {
  cast_all(call, call.low_precision);
}

void to_bfloat16_in_one_piece(const Call& call) {
  const auto argument = [&](const char* name) -> const c10::IValue& {
    return call.first[call.op.schema().argumentIndexWithName(name).value()];
  };
  const at::Tensor given = argument("params").toTensorVector().front();
  cast_all(call, c10::kBFloat16);
  const auto weights = argument("params").toTensorVector();
  const at::Tensor &of_input = weights[0], &of_hidden = weights[1];
  if (of_input.is_same(given) || !at::cudnn_is_acceptable(of_input)) return;
  const auto layer = layer_of(call.op.operator_name().name);
  const int64_t hidden_size = of_input.size(0) / layer.gates;
  const int64_t projected = of_hidden.size(1) == hidden_size ? 0 : of_hidden.size(1);
  const int64_t of_a_layer = (argument("has_biases").toBool() ? 4 : 2) + (projected > 0 ? 1 : 0);
  const at::NoGradGuard no_grad;
  at::_cudnn_rnn_flatten_weight(weights, of_a_layer, of_input.size(1), layer.mode, hidden_size,
                                projected, argument("num_layers").toInt(), /*batch_first=*/false,
                                argument("bidirectional").toBool());
}

void to_float32(const Call& call) {
  if (!has_chosen_dtype(call)) cast_all(call, c10::kFloat);
}

void to_widest(const Call& call) {
  if (types_of(call).are_mixed()) cast_all(call, c10::kFloat);
}

void to_widest_unless_promoted(const Call& call) {
  if (types_of(call).are_promoted_to_16_bit()) cast_all(call, c10::kFloat);
}

void to_type_of_self(const Call& call) {
  const at::Tensor& self = call.first->toTensor();
  if (is_castable(call.device_type, self)) cast_all_but_self(call, self.scalar_type());
}

/// torch's own derivatives may write their tensors.
void refuse_16_bit_self(const Call& call) {
  const at::Tensor& self = call.first->toTensor();
  const bool is_of_a_backward(torch::autograd::get_current_node());
  if (!is_castable(call.device_type, self) || is_of_a_backward) return;
  const auto name = call.op.operator_name().name;
  const std::string in_place = name.substr(name.find("::") + 2);
  TORCH_CHECK_NOT_IMPLEMENTED(!is_16_bit(self.scalar_type()), in_place,
                              ": expected a float32 tensor, got ", self.scalar_type(),
                              "; under O1 and O4 the result is float32, which cannot be written in "
                              "place: call ",
                              in_place.substr(0, in_place.size() - 1),
                              ", or use amp.disable_casts()");
  cast_all_but_self(call, c10::kFloat);
}

void refuse_16_bit(const Call& call) {
  for_each_tensor(call, [&](const at::Tensor& tensor) {
    const bool is_refused = is_16_bit(call.low_precision) &&
                            is_castable(call.device_type, tensor) &&
                            is_16_bit(tensor.scalar_type());
    TORCH_CHECK_NOT_IMPLEMENTED(
        !is_refused, "binary_cross_entropy: expected float32 tensors, got one in ",
        tensor.scalar_type(),
        ", whose gradients may overflow under O1 and O4; leave out the sigmoid before it and use "
        "binary_cross_entropy_with_logits (BCEWithLogitsLoss), or cast its arguments to float32");
  });
  cast_all(call, c10::kFloat);
}

void call_cast(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack,
               Rule rule, LowPrecision low_precision) {
  const DispatchKey key = keys.highestPriorityTypeId();
  const auto dtype = low_precision(device_type_of(key));
  if (!dtype || is_inside_of_an_op()) {
    op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key), stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  c10::IValue* const end = stack->data() + stack->size();
  rule({op, end - op.schema().arguments().size(), end, device_type_of(key), *dtype});
  op.callBoxed(stack);
}

}  // namespace torchamp::autocast_rules

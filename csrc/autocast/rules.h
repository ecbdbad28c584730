// How autocast kernels cast the arguments of an op: the rules, and the kernel around them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceType.h>

#include <optional>

namespace torchamp::autocast_rules {

/// The dispatch key of autocast on CPU or CUDA, and back.
c10::DispatchKey key_of(c10::DeviceType device_type);
c10::DeviceType device_type_of(c10::DispatchKey key);

/// Whether rules cast `tensor`: none casts float64, or Python numbers.
bool is_castable(c10::DeviceType device_type, const at::Tensor& tensor);

/// Whether this is a call inside another op's kernel, not by the program.
bool is_inside_of_an_op();

/// One call of an op: its arguments on the stack, and its autocast context.
struct Call {
  const c10::OperatorHandle& op;
  c10::IValue* first;
  c10::IValue* end;
  c10::DeviceType device_type;
  c10::ScalarType low_precision;
};

using Rule = void (*)(const Call&);
/// The dtype to cast to now, on a device type; empty if there is nothing to cast.
using LowPrecision = std::optional<c10::ScalarType> (*)(c10::DeviceType);

void to_low_precision(const Call& call);
/// Casts lstm, gru, rnn_tanh and rnn_relu: their weights get memory as cuDNN wants it.
void to_bfloat16_in_one_piece(const Call& call);
void to_float32(const Call& call);
void to_widest(const Call& call);
/// As to_widest where the op would not promote to it.
void to_widest_unless_promoted(const Call& call);
void to_type_of_self(const Call& call);
void refuse_16_bit_self(const Call& call);
/// If the autocast type is 16-bit; else as to_float32.
void refuse_16_bit(const Call& call);

/// Calls `op` on arguments that were cast by `rule`.
void call_cast(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
               Rule rule, LowPrecision low_precision);

template <Rule rule, LowPrecision low_precision>
void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  call_cast(op, keys, stack, rule, low_precision);
}

}  // namespace torchamp::autocast_rules

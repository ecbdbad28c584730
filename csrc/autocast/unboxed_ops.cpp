#include "autocast/unboxed_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/sub_ops.h>
#include <torchamp/detail/open_autocast.h>

#include <string>
#include <type_traits>

#include "autocast/rules.h"

namespace torchamp {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
namespace rules = autocast_rules;

struct ToFloat32 {
  void see(c10::DeviceType, const Tensor&) {}
  bool casts() const { return true; }
};

/// If one of the tensors is float32.
struct ToWidest {
  void see(c10::DeviceType device_type, const Tensor& tensor) {
    if (!rules::is_castable(device_type, tensor)) return;
    const bool is_float = tensor.scalar_type() == c10::kFloat;
    (is_float ? has_float : has_16_bit) = true;
  }
  bool casts() const { return has_float && has_16_bit; }

  bool has_float = false, has_16_bit = false;
};

Tensor float32_of(c10::DeviceType device_type, const Tensor& tensor) {
  return rules::is_castable(device_type, tensor) ? tensor.to(c10::kFloat) : tensor;
}

const c10::Scalar& float32_of(c10::DeviceType, const c10::Scalar& scalar) {
  return scalar;
}

template <class Op, class Rule, class Signature>
struct Unboxed;

template <class Op, class Rule, class... Args>
struct Unboxed<Op, Rule, Tensor(Args...)> {
  static Tensor kernel(DispatchKeySet keys, Args... args) {
    const DispatchKey key = keys.highestPriorityTypeId();
    const c10::DeviceType device_type = rules::device_type_of(key);
    Rule rule;
    const auto see = [&](const auto& argument) {
      if constexpr (std::is_same_v<decltype(argument), const Tensor&>) {
        rule.see(device_type, argument);
      }
    };
    (see(args), ...);
    const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key);
    if (!casting_to(device_type) || rules::is_inside_of_an_op())
      return Op::redispatch(below, args...);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
    return rule.casts() ? Op::call(float32_of(device_type, args)...)
                        : Op::redispatch(below, args...);
  }
};

template <class Op, class Rule>
void add(torch::Library& library, DispatchKey key) {
  const auto op = c10::Dispatcher::singleton().findSchema({Op::name, Op::overload_name});
  if (!op || op->hasKernelForDispatchKey(key)) return;
  const std::string name = std::string(Op::name) + '.' + Op::overload_name;
  library.impl(name.substr(0, name.find_last_not_of('.') + 1).c_str(),
               &Unboxed<Op, Rule, typename Op::schema>::kernel);
}

}  // namespace

void add_unboxed(torch::Library& library, DispatchKey key) {
  add<at::_ops::add_Tensor, ToWidest>(library, key);
  add<at::_ops::sub_Tensor, ToWidest>(library, key);
  add<at::_ops::rsub_Tensor, ToWidest>(library, key);
  add<at::_ops::mul_Tensor, ToWidest>(library, key);
  add<at::_ops::div_Tensor, ToWidest>(library, key);
  add<at::_ops::eq_Tensor, ToWidest>(library, key);
  add<at::_ops::ne_Tensor, ToWidest>(library, key);
  add<at::_ops::ge_Tensor, ToWidest>(library, key);
  add<at::_ops::gt_Tensor, ToWidest>(library, key);
  add<at::_ops::le_Tensor, ToWidest>(library, key);
  add<at::_ops::lt_Tensor, ToWidest>(library, key);
  add<at::_ops::exp, ToFloat32>(library, key);
  add<at::_ops::log, ToFloat32>(library, key);
  add<at::_ops::reciprocal, ToFloat32>(library, key);
  add<at::_ops::rsqrt, ToFloat32>(library, key);
  add<at::_ops::pow_Tensor_Scalar, ToFloat32>(library, key);
}

}  // namespace torchamp

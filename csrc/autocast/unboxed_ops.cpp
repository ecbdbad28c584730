#include "autocast/unboxed_ops.h"

#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/norm_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>

#include <optional>
#include <string>
#include <utility>

#include "autocast/open_autocast.h"
#include "autocast/rules.h"

namespace torchamp {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
namespace rules = autocast_rules;
namespace op = at::_ops;

/// The arguments of a call.
struct Arguments {
  template <class Argument>
  void add(c10::DeviceType, const Argument&) {}
  void add(c10::DeviceType device_type, const Tensor& tensor) { types.add(device_type, tensor); }
  void add(c10::DeviceType device_type, const std::optional<Tensor>& tensor) {
    if (tensor) types.add(device_type, *tensor);
  }
  void add(c10::DeviceType, const std::optional<c10::ScalarType>& dtype) {
    has_chosen_dtype |= dtype.has_value();
  }

  rules::ArgumentTypes types;
  bool has_chosen_dtype = false;
};

struct ToFloat32 {
  static bool casts(const Arguments& arguments) {
    return arguments.types.has_16_bit() && !arguments.has_chosen_dtype;
  }
};

struct ToWidest {
  static bool casts(const Arguments& arguments) { return arguments.types.are_mixed(); }
};

/// The rule of ops that promote their arguments, and whose derivatives do: on CUDA without copies.
struct PromotesToWidest {
  static bool casts(const Arguments& arguments) { return arguments.types.are_promoted_to_16_bit(); }
};

template <class Argument>
const Argument& float32_of(c10::DeviceType, const Argument& argument) {
  return argument;
}

Tensor float32_of(c10::DeviceType device_type, const Tensor& tensor) {
  return rules::is_castable(device_type, tensor) ? tensor.to(c10::kFloat) : tensor;
}

std::optional<Tensor> float32_of(c10::DeviceType device_type, const std::optional<Tensor>& tensor) {
  return tensor ? std::optional(float32_of(device_type, *tensor)) : std::nullopt;
}

template <class Op, class Rule, class Signature>
struct Unboxed;

template <class Op, class Rule, class... Args>
struct Unboxed<Op, Rule, Tensor(Args...)> {
  static Tensor kernel(DispatchKeySet keys, Args... args) {
    const DispatchKey key = keys.highestPriorityTypeId();
    const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key);
    const c10::DeviceType device_type = rules::device_type_of(key);
    if (!casting_to(device_type) || rules::is_inside_of_an_op()) {
      return Op::redispatch(below, args...);
    }
    Arguments arguments;
    (arguments.add(device_type, args), ...);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
    return Rule::casts(arguments) ? Op::call(float32_of(device_type, args)...)
                                  : Op::redispatch(below, args...);
  }
};

/// Casts to float32 inside log_softmax, which CUDA does without a copy of the scores.
Tensor cross_entropy(DispatchKeySet keys, const Tensor& scores, const Tensor& target,
                     const std::optional<Tensor>& weight, int64_t reduction,
                     c10::SymInt ignore_index, double label_smoothing) {
  using Plain =
      Unboxed<at::_ops::cross_entropy_loss, ToFloat32, at::_ops::cross_entropy_loss::schema>;
  const bool has_classes = !target.is_floating_point() && target.sym_sizes() != scores.sym_sizes();
  const bool is_cast = casting_to(c10::kCUDA) && !rules::is_inside_of_an_op() &&
                       rules::is_castable(c10::kCUDA, scores);
  if (!is_cast || !has_classes || label_smoothing != 0) {
    return Plain::kernel(keys, scores, target, weight, reduction, std::move(ignore_index),
                         label_smoothing);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(keys.highestPriorityTypeId());
  const Tensor log_probs = at::log_softmax(scores, scores.dim() == 1 ? 0 : 1, c10::kFloat);
  return at::nll_loss_nd_symint(log_probs, target, float32_of(c10::kCUDA, weight), reduction,
                                std::move(ignore_index));
}

template <class Rule, class... Ops>
bool add_one_of(torch::Library& library, const std::string& name) {
  const auto add = [&](const char* op, const std::string& overload, auto* kernel) {
    const bool is_it = name == (overload.empty() ? op : op + ('.' + overload));
    if (is_it) library.impl(name.c_str(), kernel);
    return is_it;
  };
  constexpr size_t kNamespace = sizeof("aten::") - 1;
  return (add(Ops::name + kNamespace, Ops::overload_name,
              &Unboxed<Ops, Rule, typename Ops::schema>::kernel) ||
          ...);
}

}  // namespace

bool add_unboxed_to_float32(torch::Library& library, DispatchKey key, const std::string& name) {
  if (name == "cross_entropy_loss" && key == DispatchKey::AutocastCUDA) {
    library.impl(name.c_str(), &cross_entropy);
    return true;
  }
  return add_one_of<ToFloat32, op::exp, op::log, op::reciprocal, op::rsqrt, op::pow_Tensor_Scalar,
                    op::cumsum, op::sum, op::sum_dim_IntList, op::norm_ScalarOpt_dim,
                    op::linalg_vector_norm, op::softmax_int, op::log_softmax_int, op::layer_norm>(
      library, name);
}

bool add_unboxed_to_widest(torch::Library& library, DispatchKey, const std::string& name) {
  return add_one_of<PromotesToWidest, op::add_Tensor, op::sub_Tensor, op::rsub_Tensor,
                    op::mul_Tensor, op::div_Tensor, op::eq_Tensor, op::ne_Tensor, op::ge_Tensor,
                    op::gt_Tensor, op::le_Tensor, op::lt_Tensor>(library, name) ||
         add_one_of<ToWidest, op::addcmul, op::addcdiv>(library, name);
}

}  // namespace torchamp

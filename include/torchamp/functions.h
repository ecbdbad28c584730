// Functions whose tensors O1 and O4 cast.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/autocast.h>
#include <torchamp/detail/export.h>
#include <torchamp/parts.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace torchamp {
namespace detail {

enum class FunctionCast { kLowPrecision, kBFloat16, kFloat32, kWidest };

/// What one call of a function casts its tensors to.
class TORCHAMP_API ArgumentCast {
 public:
  explicit ArgumentCast(FunctionCast kind) : kind_(kind) {}

  /// To be called with every tensor before the first is cast.
  void look_at(const at::Tensor& tensor);
  /// `tensor` itself unless it is float32 or 16 bit, on a device type of which O1 or O4 is on.
  at::Tensor cast(const at::Tensor& tensor) const;

 private:
  FunctionCast kind_;
  bool has_float32_ = false;
};

template <class T>
void look_at(ArgumentCast& cast, const T& argument) {
  if constexpr (holds_tensors<T>) {
    T looked_at = argument;
    for_each_tensor(looked_at, [&cast](const at::Tensor& tensor) { cast.look_at(tensor); });
  }
}

/// `argument` with its tensors cast; the very argument where it cannot hold any.
template <class T>
decltype(auto) cast_argument(const ArgumentCast& cast, T&& argument) {
  if constexpr (holds_tensors<std::decay_t<T>>) {
    std::decay_t<T> result = std::forward<T>(argument);
    for_each_tensor(result, [&cast](at::Tensor& tensor) { tensor = cast.cast(tensor); });
    return result;
  } else {
    return std::forward<T>(argument);
  }
}

template <class F, class... Args>
decltype(auto) call_uncast(F& function, Args&&... args) {
  const ShieldFromAutocast shield;
  return std::invoke(function, std::forward<Args>(args)...);
}

/// `F` behind a cast of its arguments.
template <class F>
class CastFunction {
 public:
  CastFunction(F function, FunctionCast kind) : function_(std::move(function)), kind_(kind) {}

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    ArgumentCast cast(kind_);
    (look_at(cast, args), ...);
    return call_uncast(function_, cast_argument(cast, std::forward<Args>(args))...);
  }

 private:
  F function_;
  FunctionCast kind_;
};

}  // namespace detail

/// @addtogroup autocast_ops
/// @{

/// `function` (a function, a lambda, a member function, an object with an operator()) behind a cast
/// of its floating tensors to the level's 16-bit type, wherever O1 or O4 is on when it is called.
/// Arguments that are tensors, and the Parts of others, are looked at; float64 is left alone. What
/// `function` itself calls is not cast: weights that it holds must fit.
template <class F>
auto half_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kLowPrecision);
}

/// As half_function, to bfloat16 at every level.
template <class F>
auto bfloat16_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kBFloat16);
}

/// As half_function, to float32: a part of a program that O1 leaves in full precision.
template <class F>
auto float_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kFloat32);
}

/// As half_function, to float32 where one of the tensors is.
template <class F>
auto promote_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kWidest);
}

/// half_function for an op by its name, "space::op" or "space::op.overload": its tensors and lists
/// of tensors are cast wherever O1, O4 or an autocast scope is on, however it is called, for the
/// rest of the process. Acts on CPU and CUDA.
///
/// Throws ValueError for what is no op, and for one that autocast has a rule for: torch's own, and
/// those registered before.
TORCHAMP_API void register_half_op(const std::string& name);
/// As register_half_op, to bfloat16 at every level.
TORCHAMP_API void register_bfloat16_op(const std::string& name);
/// As register_half_op, to float32, but for calls that give the op a dtype.
TORCHAMP_API void register_float_op(const std::string& name);
/// As register_half_op, to float32 where one of the tensors is.
TORCHAMP_API void register_promote_op(const std::string& name);

/// @}

}  // namespace torchamp

// Functions whose tensors O1 and O4 cast.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/autocast.h>
#include <torchamp/detail/export.h>
#include <torchamp/parts.h>

#include <functional>
#include <type_traits>
#include <utility>

namespace torchamp {
namespace detail {

enum class FunctionCast { kLowPrecision, kBFloat16, kFloat32, kWidest };

/// The dtype that one call of a function casts its tensors to.
class TORCHAMP_API ArgumentCast {
 public:
  explicit ArgumentCast(FunctionCast kind) : kind_(kind) {}

  /// To be called with every tensor before the first is cast.
  void look_at(const at::Tensor& tensor);
  /// `tensor` itself unless it is float32 or 16-bit, on a device type for which O1 or O4 is on.
  at::Tensor cast(const at::Tensor& tensor) const;

 private:
  FunctionCast kind_;
  bool has_float32_ = false;
};

template <class T>
void look_at(ArgumentCast& cast, const T& argument) {
  if constexpr (holds_tensors<T>) {
    T visited = argument;
    for_each_tensor(visited, [&cast](const at::Tensor& tensor) { cast.look_at(tensor); });
  }
}

/// `argument` with its tensors cast; the same object if it cannot hold any.
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
  const disable_casts shield;
  return std::invoke(function, std::forward<Args>(args)...);
}

/// `F`, with its arguments cast.
template <class F>
class CastFunction {
 public:
  CastFunction(F function, FunctionCast kind) : function_(std::move(function)), kind_(kind) {}

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return call(function_, std::forward<Args>(args)...);
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    return call(function_, std::forward<Args>(args)...);
  }

 private:
  template <class Function, class... Args>
  decltype(auto) call(Function& function, Args&&... args) const {
    ArgumentCast cast(kind_);
    (look_at(cast, args), ...);
    return call_uncast(function, cast_argument(cast, std::forward<Args>(args))...);
  }

  F function_;
  FunctionCast kind_;
};

}  // namespace detail

/// @addtogroup autocast_ops
/// @{

/// `function` (a function, a lambda, a member function, an object with an operator()) with its
/// floating tensors cast to the level's 16-bit type, if O1 or O4 is on when it is called. Casts
/// arguments that are tensors, and the Parts of others, but not float64. Calls inside `function`
/// are not cast: its weights must have matching dtypes.
template <class F>
auto half_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kLowPrecision);
}

/// Like half_function, to bfloat16 at every level.
template <class F>
auto bfloat16_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kBFloat16);
}

/// Like half_function, to float32: for code that must stay in full precision.
template <class F>
auto float_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kFloat32);
}

/// Like half_function, to float32 if one of the tensors is float32.
template <class F>
auto promote_function(F function) {
  return detail::CastFunction<F>(std::move(function), detail::FunctionCast::kWidest);
}

/// @}

}  // namespace torchamp

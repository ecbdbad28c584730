// Stage 2: cast. A model's parameters and buffers, and what goes into and comes out of its forward.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/export.h>

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace torchamp {
/// @addtogroup cast
/// @{

/// The floating parameters that cast_module would give another dtype. Each once, however many
/// modules share it.
TORCHAMP_API std::vector<at::Tensor> params_to_cast(torch::nn::Module& module, at::ScalarType dtype,
                                                    bool keep_batchnorm_fp32);

/// Gives floating parameters (their identity stays), their grads and floating buffers `dtype`.
/// `keep_batchnorm_fp32` leaves affine batch norms alone. Recurrent modules get their weights
/// flattened again.
TORCHAMP_API void cast_module(torch::nn::Module& module, at::ScalarType dtype,
                              bool keep_batchnorm_fp32);

/// @{
/// `value` with floating tensors in `dtype`: tensors, and pairs, tuples, vectors, arrays, optionals
/// and maps of what can be cast. Anything else is returned as it is.
inline at::Tensor cast_floating(const at::Tensor& value, at::ScalarType dtype) {
  return value.defined() && value.is_floating_point() ? value.to(dtype) : value;
}

template <class T>
T cast_floating(const T& value, at::ScalarType) {
  return value;
}

template <class T>
std::optional<T> cast_floating(const std::optional<T>& value, at::ScalarType dtype);
template <class A, class B>
std::pair<A, B> cast_floating(const std::pair<A, B>& value, at::ScalarType dtype);
template <class... Ts>
std::tuple<Ts...> cast_floating(const std::tuple<Ts...>& value, at::ScalarType dtype);
template <class T>
std::vector<T> cast_floating(const std::vector<T>& value, at::ScalarType dtype);
template <class T, size_t N>
std::array<T, N> cast_floating(const std::array<T, N>& value, at::ScalarType dtype);
template <class K, class V>
std::map<K, V> cast_floating(const std::map<K, V>& value, at::ScalarType dtype);

template <class T>
std::optional<T> cast_floating(const std::optional<T>& value, at::ScalarType dtype) {
  return value ? std::optional<T>(cast_floating(*value, dtype)) : value;
}

template <class A, class B>
std::pair<A, B> cast_floating(const std::pair<A, B>& value, at::ScalarType dtype) {
  return {cast_floating(value.first, dtype), cast_floating(value.second, dtype)};
}

template <class... Ts>
std::tuple<Ts...> cast_floating(const std::tuple<Ts...>& value, at::ScalarType dtype) {
  const auto cast_each = [dtype](const Ts&... elements) {
    return std::tuple<Ts...>(cast_floating(elements, dtype)...);
  };
  return std::apply(cast_each, value);
}

template <class T>
std::vector<T> cast_floating(const std::vector<T>& value, at::ScalarType dtype) {
  std::vector<T> result = value;
  for (T& element : result) element = cast_floating(element, dtype);
  return result;
}

template <class T, size_t N>
std::array<T, N> cast_floating(const std::array<T, N>& value, at::ScalarType dtype) {
  std::array<T, N> result = value;
  for (T& element : result) element = cast_floating(element, dtype);
  return result;
}

template <class K, class V>
std::map<K, V> cast_floating(const std::map<K, V>& value, at::ScalarType dtype) {
  std::map<K, V> result = value;
  for (auto& [key, element] : result) element = cast_floating(element, dtype);
  return result;
}
/// @}

/// @}

}  // namespace torchamp

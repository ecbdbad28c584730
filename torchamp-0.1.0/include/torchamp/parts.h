// The parts of a value that hold tensors: containers, and types that name their members.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/ordered_dict.h>

#include <array>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace torch::nn::utils::rnn {
class PackedSequence;
}

namespace torchamp {
/// @addtogroup cast
/// @{

/// `Parts<T>::visit(value, visitor)` calls `visitor` with a reference to each part of `value`, and
/// `Parts<T>::Types` is a tuple of the types that parts have. Not defined for a T without parts.
///
/// A program makes its own types known by a function beside them, which names the members that hold
/// tensors:
///
///     struct Output { torch::Tensor logits; torch::Tensor loss; };
///     inline auto amp_members(Output& output) { return std::tie(output.logits, output.loss); }
///
/// The function is found in the type's own namespace; it may be a friend.
template <class T, class = void>
struct Parts {
  using Types = void;  ///< of the parts, a tuple; void: there are none
};

/// @}

namespace detail {

template <class... Ts>
std::tuple<Ts...> types_of_tie(const std::tuple<Ts&...>&);

/// Parts that are elements: those that iterating over `T` gives.
template <class T, class Element>
struct Elements {
  using Types = std::tuple<Element>;
  template <class Visitor>
  static void visit(T& value, const Visitor& visitor) {
    for (Element& element : value) visitor(element);
  }
};

/// Parts that are a map's values; its keys are not visited.
template <class T, class Value>
struct MappedValues {
  using Types = std::tuple<Value>;
  template <class Visitor>
  static void visit(T& value, const Visitor& visitor) {
    for (auto& entry : value) visitor(entry.second);
  }
};

/// Parts that std::apply finds.
template <class T, class... Ts>
struct Applied {
  using Types = std::tuple<Ts...>;
  template <class Visitor>
  static void visit(T& value, const Visitor& visitor) {
    std::apply([&](Ts&... parts) { (visitor(parts), ...); }, value);
  }
};

}  // namespace detail

/// @cond

template <class T, class A>
struct Parts<std::vector<T, A>> : detail::Elements<std::vector<T, A>, T> {};
template <class T, class A>
struct Parts<std::deque<T, A>> : detail::Elements<std::deque<T, A>, T> {};
template <class T, class A>
struct Parts<std::list<T, A>> : detail::Elements<std::list<T, A>, T> {};
template <class T, size_t N>
struct Parts<std::array<T, N>> : detail::Elements<std::array<T, N>, T> {};

template <class... Ts>
struct Parts<std::map<Ts...>>
    : detail::MappedValues<std::map<Ts...>, typename std::map<Ts...>::mapped_type> {};
template <class... Ts>
struct Parts<std::unordered_map<Ts...>>
    : detail::MappedValues<std::unordered_map<Ts...>,
                           typename std::unordered_map<Ts...>::mapped_type> {};

template <class A, class B>
struct Parts<std::pair<A, B>> : detail::Applied<std::pair<A, B>, A, B> {};
template <class... Ts>
struct Parts<std::tuple<Ts...>> : detail::Applied<std::tuple<Ts...>, Ts...> {};

template <class T>
struct Parts<std::optional<T>> {
  using Types = std::tuple<T>;
  template <class Visitor>
  static void visit(std::optional<T>& value, const Visitor& visitor) {
    if (value) visitor(*value);
  }
};

template <class... Ts>
struct Parts<std::variant<Ts...>> {
  using Types = std::tuple<Ts...>;
  template <class Visitor>
  static void visit(std::variant<Ts...>& value, const Visitor& visitor) {
    std::visit(visitor, value);
  }
};

template <class Key, class Value>
struct Parts<torch::OrderedDict<Key, Value>> {
  using Types = std::tuple<Value>;
  template <class Visitor>
  static void visit(torch::OrderedDict<Key, Value>& value, const Visitor& visitor) {
    for (auto& item : value) visitor(item.value());
  }
};

template <class T>
struct Parts<T, std::enable_if_t<std::is_same_v<T, torch::nn::utils::rnn::PackedSequence>>> {
  using Types = std::tuple<at::Tensor>;
  template <class Visitor>
  static void visit(T& value, const Visitor& visitor) {
    at::Tensor data = value.data();
    visitor(data);
    value = T(data, value.batch_sizes(), value.sorted_indices(), value.unsorted_indices());
  }
};

template <class T>
struct Parts<T, std::void_t<decltype(amp_members(std::declval<T&>()))>> {
  using Types = decltype(detail::types_of_tie(amp_members(std::declval<T&>())));
  template <class Visitor>
  static void visit(T& value, const Visitor& visitor) {
    std::apply([&](auto&... members) { (visitor(members), ...); }, amp_members(value));
  }
};

/// @endcond

namespace detail {

template <class T>
struct HoldsTensors;
template <class T>
struct IsUnderstood;

template <class Types>
struct OfTypes {
  static constexpr bool any_holds_tensors = false;
  static constexpr bool all_understood = false;
};
template <class... Ts>
struct OfTypes<std::tuple<Ts...>> {
  static constexpr bool any_holds_tensors = (HoldsTensors<Ts>::value || ...);
  static constexpr bool all_understood = (IsUnderstood<Ts>::value && ...);
};

template <class T>
constexpr bool is_tensor = std::is_base_of_v<at::Tensor, std::decay_t<T>>;
template <class T>
constexpr bool has_parts = !std::is_void_v<typename Parts<T>::Types>;

template <class T>
struct HoldsTensors
    : std::bool_constant<is_tensor<T> || OfTypes<typename Parts<T>::Types>::any_holds_tensors> {};

/// Tensors own what they refer to, so a type that is copied as bytes has none, views excepted.
template <class T>
struct IsUnderstood
    : std::bool_constant<is_tensor<T> || std::is_same_v<T, std::string> ||
                         (has_parts<T> ? OfTypes<typename Parts<T>::Types>::all_understood
                                       : std::is_trivially_copyable_v<T>)> {};
template <class T>
struct IsUnderstood<c10::ArrayRef<T>> : std::negation<HoldsTensors<T>> {};

}  // namespace detail

/// @addtogroup cast
/// @{

/// Whether values of type T can hold tensors that Parts finds.
template <class T>
constexpr bool holds_tensors = detail::HoldsTensors<T>::value;
/// Whether Parts finds all tensors in values of type T.
template <class T>
constexpr bool is_understood = detail::IsUnderstood<T>::value;

/// Calls `visitor` with a reference to each tensor in `value`.
template <class T, class Visitor>
void for_each_tensor(T& value, const Visitor& visitor) {
  if constexpr (detail::is_tensor<T>) {
    visitor(value);
  } else if constexpr (holds_tensors<T>) {
    Parts<T>::visit(value, [&visitor](auto& part) { for_each_tensor(part, visitor); });
  }
}

/// @}

}  // namespace torchamp

// Tells by the types what programs give initialize by mistake.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace torchamp {

class Optimizer;
class Options;
template <class M>
class Model;

namespace detail {

enum class Mistake {
  kNone,
  kUniqueModel,
  kModelPointer,
  kScriptModule,
  kModelAgain,
  kModuleCopies,
  kSwapped,
  kOptimizerPointer,
  kUniqueOptimizer,
  kConstOptimizer,
  kOptimizers,
  kOptimizerOptions,
  kInitialized,
  kNumber,
  kOptionAfterLevel,
  kArguments
};

template <class T, class Base>
constexpr bool is_pointer_to = std::is_pointer_v<std::decay_t<T>>&&
    std::is_base_of_v<Base, std::remove_pointer_t<std::decay_t<T>>>;
template <class T, class Base>
constexpr bool is_unique = false;
template <class T, class Deleter, class Base>
constexpr bool is_unique<std::unique_ptr<T, Deleter>, Base> = std::is_base_of_v<Base, T>;
template <class T, class Base>
constexpr bool is_shared = false;
template <class T, class Base>
constexpr bool is_shared<std::shared_ptr<T>, Base> = std::is_base_of_v<Base, T>;
template <class T>
constexpr bool is_optimizer = std::is_base_of_v<torch::optim::Optimizer, std::decay_t<T>> ||
                              std::is_same_v<Optimizer, std::decay_t<T>>;

template <class T>
constexpr bool is_optimizers = false;
template <class T>
constexpr bool is_optimizers<std::vector<T>> =
    std::is_base_of_v<torch::optim::Optimizer, T> || is_pointer_to<T, torch::optim::Optimizer> ||
    is_unique<T, torch::optim::Optimizer> || is_shared<T, torch::optim::Optimizer>;

template <class T>
constexpr bool is_model = false;
template <class M>
constexpr bool is_model<Model<M>> = true;

/// Several models among which are modules themselves.
template <class T>
constexpr bool has_modules = false;
template <class... Ms>
constexpr bool has_modules<std::tuple<Ms...>> = (std::is_base_of_v<torch::nn::Module, Ms> || ...);
template <class M>
constexpr bool has_modules<std::vector<M>> = std::is_base_of_v<torch::nn::Module, M>;

/// A pointer to a holder, as to a module.
template <class T, class = void>
constexpr bool is_holder_pointer = false;
template <class T>
constexpr bool is_holder_pointer<T*, std::void_t<decltype(std::declval<T&>().ptr())>> = true;

/// What holds several models, and initialize does not take.
template <class T>
constexpr bool is_array_or_pair = std::is_array_v<T>;
template <class M, size_t count>
constexpr bool is_array_or_pair<std::array<M, count>> = true;
template <class A, class B>
constexpr bool is_array_or_pair<std::pair<A, B>> = true;

/// std::tie(adam, sgd).
template <class T>
constexpr bool is_tie = false;
template <class... Os>
constexpr bool is_tie<std::tuple<Os&...>> = (std::is_base_of_v<torch::optim::Optimizer, Os> && ...);

/// What initialize takes behind the model.
template <class T>
constexpr bool is_level = std::is_convertible_v<T, Options>;
template <class T>
constexpr bool is_taken_optimizer =
    is_optimizer<T> || is_tie<std::decay_t<T>> ||
    std::is_convertible_v<T, torch::optim::Optimizer&> ||
    std::is_convertible_v<T, std::shared_ptr<torch::optim::Optimizer>> ||
    std::is_convertible_v<T, std::vector<std::reference_wrapper<torch::optim::Optimizer>>>;
template <class... Args>
constexpr bool are_taken = sizeof...(Args) == 0;
template <class T>
constexpr bool are_taken<T> = is_level<T> || is_taken_optimizer<T>;
template <class O, class Level>
constexpr bool are_taken<O, Level> = is_taken_optimizer<O>&& is_level<Level>;

template <class M>
constexpr Mistake mistaken_model() {
  using Module = torch::nn::Module;
  if (is_unique<std::decay_t<M>, Module>) return Mistake::kUniqueModel;
  if (is_array_or_pair<std::remove_cv_t<std::remove_reference_t<M>>>) return Mistake::kArguments;
  if (is_pointer_to<M, Module> || is_holder_pointer<std::decay_t<M>>) return Mistake::kModelPointer;
  if (std::is_same_v<std::decay_t<M>, torch::jit::Module>) return Mistake::kScriptModule;
  if (is_model<std::decay_t<M>>) return Mistake::kModelAgain;
  if (has_modules<std::decay_t<M>>) return Mistake::kModuleCopies;
  return is_optimizer<M> || is_level<M> ? Mistake::kSwapped : Mistake::kNone;
}

template <class T>
constexpr Mistake mistaken_argument() {
  using Given = std::decay_t<T>;
  if (is_pointer_to<T, torch::optim::Optimizer>) return Mistake::kOptimizerPointer;
  if (is_optimizers<Given>) return Mistake::kOptimizers;
  if (std::is_base_of_v<torch::optim::OptimizerOptions, Given>) return Mistake::kOptimizerOptions;
  if (std::is_base_of_v<torch::optim::Optimizer, Given> &&
      std::is_const_v<std::remove_reference_t<T>>) {
    return Mistake::kConstOptimizer;
  }
  const bool is_kept = std::is_lvalue_reference_v<T>;  // by the program: it was not moved
  if (is_kept && is_unique<Given, torch::optim::Optimizer>) return Mistake::kUniqueOptimizer;
  if (std::is_same_v<Given, Optimizer> || std::is_same_v<Given, std::vector<Optimizer>>) {
    return Mistake::kInitialized;
  }
  return Mistake::kNone;
}

/// The mistake in arguments that initialize does not take in this number or order.
template <class... Args>
constexpr Mistake mistaken_order() {
  bool has_level = false, has_option = false;
  ((has_option |= has_level && !is_taken_optimizer<Args>, has_level |= is_level<Args>), ...);
  if (has_option) return Mistake::kOptionAfterLevel;
  const bool has_number = (std::is_arithmetic_v<std::decay_t<Args>> || ...);
  return has_number && !has_level ? Mistake::kNumber : Mistake::kArguments;
}

/// The first, in initialize's arguments: a model, and others.
template <class M, class... Args>
constexpr Mistake mistake() {
  Mistake found = mistaken_model<M>();
  ((found = found == Mistake::kNone ? mistaken_argument<Args>() : found), ...);
  return found != Mistake::kNone || are_taken<Args...> ? found : mistaken_order<Args...>();
}

template <class M, class... Args>
using IfMistaken = std::enable_if_t<mistake<M, Args...>() != Mistake::kNone, int>;

}  // namespace detail
}  // namespace torchamp

// Tells by the types what programs give initialize by mistake.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace torchamp {

class Optimizer;
class Options;

namespace detail {

enum class Mistake {
  kNone,
  kUniqueModel,
  kModelPointer,
  kScriptModule,
  kSwapped,
  kOptimizerPointer,
  kUniqueOptimizer,
  kConstOptimizer,
  kOptimizers,
  kOptimizerOptions,
  kInitialized,
  kNumber,
  kOptionAfterLevel
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
constexpr bool is_level =
    std::is_convertible_v<T, std::string> || std::is_enum_v<std::decay_t<T>> ||
    std::is_same_v<std::decay_t<T>, Options>;

template <class M>
constexpr Mistake mistaken_model() {
  using Module = torch::nn::Module;
  if (is_unique<std::decay_t<M>, Module>) return Mistake::kUniqueModel;
  if (is_pointer_to<M, Module>) return Mistake::kModelPointer;
  if (std::is_same_v<std::decay_t<M>, torch::jit::Module>) return Mistake::kScriptModule;
  return is_optimizer<M> ? Mistake::kSwapped : Mistake::kNone;
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
  return std::is_arithmetic_v<Given> ? Mistake::kNumber : Mistake::kNone;
}

/// The first, in initialize's arguments: a model, and others.
template <class M, class... Args>
constexpr Mistake mistake() {
  Mistake found = mistaken_model<M>();
  ((found = found == Mistake::kNone ? mistaken_argument<Args>() : found), ...);
  const bool has_level = (is_level<Args> || ...);
  return found == Mistake::kNumber && has_level ? Mistake::kOptionAfterLevel : found;
}

template <class M, class... Args>
using IfMistaken = std::enable_if_t<mistake<M, Args...>() != Mistake::kNone, int>;

}  // namespace detail
}  // namespace torchamp

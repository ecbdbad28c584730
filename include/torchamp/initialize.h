// The entry point: initialize.
#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/detail/export.h>
#include <torchamp/detail/misuse.h>
#include <torchamp/model.h>
#include <torchamp/optimizer.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchamp {
/// @addtogroup choose
/// @{

/// What initialize(model, optimizer) returns; `auto& [model, optimizer] = amped;` if you like.
template <class M>
struct Amped {
  Model<M> model;       ///< call this instead of the module
  Optimizer optimizer;  ///< step this instead of the given optimizer
};

/// What initialize returns for several models and optimizers.
template <class... Ms>
struct AmpedMany {
  std::tuple<Model<Ms>...> models;    ///< in the order in which they were given
  std::vector<Optimizer> optimizers;  ///< in the order in which they were given
};

/// `{adam, sgd}`: optimizers that the program owns.
using OptimizerRefs = std::vector<std::reference_wrapper<torch::optim::Optimizer>>;

namespace detail {

/// A model of any kind, in braces.
struct AnyValue {
  template <class T>
  AnyValue(const T&) {}
};

template <class M, class = void>
constexpr bool has_module = false;
template <class T>
constexpr bool has_module<std::shared_ptr<T>> = std::is_base_of_v<torch::nn::Module, T>;
template <class M>
constexpr bool has_module<M, std::void_t<decltype(std::declval<const M&>().ptr())>> =
    !std::is_base_of_v<torch::nn::Module, M>;

/// A module itself, which initialize takes by reference.
template <class M>
constexpr bool is_module = std::is_base_of_v<torch::nn::Module, M>;
template <class M>
using IfModule = std::enable_if_t<is_module<M>, int>;
template <class M>
using IfHandle = std::enable_if_t<!is_module<M>, int>;

/// A pointer that does not own, by which LibTorch's functions find the module itself.
template <class M>
std::shared_ptr<M> unowned(M& module) {
  return std::shared_ptr<M>(&module, [](M*) {});
}

template <class M>
std::shared_ptr<torch::nn::Module> module_of(const M& model) {
  static_assert(has_module<M>,
                "a model must be a holder (of TORCH_MODULE, torch::nn::Sequential, "
                "torch::nn::AnyModule), a std::shared_ptr to a torch::nn::Module, or alone a "
                "module that the program keeps; in a tuple a module would be a copy");
  return model.ptr();
}

template <class T>
std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<T>& module) {
  static_assert(has_module<std::shared_ptr<T>>, "a model must be a torch::nn::Module");
  return module;
}

TORCHAMP_API void save_module(Amp& amp, const torch::nn::Module& module,
                              torch::serialize::OutputArchive& archive);
TORCHAMP_API void load_module(Amp& amp, torch::nn::Module& module,
                              torch::serialize::InputArchive& archive);

}  // namespace detail

/// Prepares models and optimizers for training at `options`' level. The models must be on their
/// device and already passed to the optimizers; what trains must be float32. They are cast in
/// place; parameters keep their identity. The optimizers' groups get float32 masters if the level
/// uses them.
///
/// Throws if an option contradicts the level or a model that trains is not float32, before anything
/// is changed.
template <class... Ms>
AmpedMany<Ms...> initialize(std::tuple<Ms...> models, const OptimizerRefs& optimizers,
                            const Options& options = {}) {
  const auto modules_of = [](const Ms&... each) {
    return std::vector<std::shared_ptr<torch::nn::Module>>{detail::module_of(each)...};
  };
  const auto amp = std::make_shared<Amp>(std::apply(modules_of, models), optimizers, options);
  const auto wrap = [&amp](const Ms&... each) {
    return std::tuple<Model<Ms>...>(Model<Ms>(each, amp)...);
  };
  AmpedMany<Ms...> result{std::apply(wrap, models), {}};
  for (size_t i = 0; i < optimizers.size(); ++i) result.optimizers.emplace_back(amp, i);
  return result;
}

/// Several models and one optimizer.
template <class... Ms>
AmpedMany<Ms...> initialize(std::tuple<Ms...> models,
                            torch::optim::Optimizer& optimizer TORCHAMP_LIFETIMEBOUND,
                            const Options& options = {}) {
  return initialize(std::move(models), OptimizerRefs{optimizer}, options);
}

/// One model and one optimizer, which must outlive the result.
template <class M, detail::IfHandle<M> = 0>
Amped<M> initialize(M model, torch::optim::Optimizer& optimizer TORCHAMP_LIFETIMEBOUND,
                    const Options& options = {}) {
  auto many =
      initialize(std::make_tuple(std::move(model)), OptimizerRefs{std::ref(optimizer)}, options);
  return {std::get<0>(many.models), many.optimizers.front()};
}

/// The same for an optimizer that the result keeps alive; a std::unique_ptr to one becomes a
/// std::shared_ptr.
template <class M, detail::IfHandle<M> = 0>
Amped<M> initialize(M model, std::shared_ptr<torch::optim::Optimizer> optimizer,
                    const Options& options = {}) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "initialize: expected an optimizer, got a null pointer");
  auto amped = initialize(std::move(model), *optimizer, options);
  amped.model.amp()->own(std::move(optimizer));
  return amped;
}

/// The same for one that moves into the result: `initialize(net, torch::optim::Adam(…), "O2")`, or
/// `std::move(adam)` in a function that returns the result.
template <class M, class O, detail::IfHandle<M> = 0,
          class = std::enable_if_t<std::is_base_of_v<torch::optim::Optimizer, O>>>
Amped<M> initialize(M model, O&& optimizer, const Options& options = {}) {
  return initialize(std::move(model),
                    std::shared_ptr<torch::optim::Optimizer>(new O(std::move(optimizer))), options);
}

/// A model alone.
template <class M, detail::IfHandle<M> = 0>
Model<M> initialize(M model, const Options& options = {}) {
  return std::get<0>(
      initialize(std::make_tuple(std::move(model)), OptimizerRefs(), options).models);
}

/// All of these for a module that the program keeps, which must outlive the result.
template <class M, class... Args, detail::IfModule<M> = 0>
auto initialize(M& module TORCHAMP_LIFETIMEBOUND, Args&&... args) {
  return initialize(detail::unowned(module), std::forward<Args>(args)...);
}

/// The inverse of initialize, to train, save or initialize the models in another way: all models
/// and optimizers that the initialize was given are plain float32 ones again, in place. Parameters
/// have their masters' values, bit for bit, and optimizers step them with the states that they
/// have. Grads are dropped, as by zero_grad(). What initialize returned throws from then on, except
/// Optimizer::wrapped().
///
/// Throws RuntimeError, and changes nothing, while a scale_loss is open, if a parameter changed its
/// dtype since initialize, and without masters for optimizers that torchamp::save does not know.
template <class M>
void release(const Model<M>& model) {
  model.amp()->release();
}

/// The same.
template <class M>
void release(const Amped<M>& amped) {
  amped.model.amp()->release();
}

/// The same.
template <class... Ms>
void release(const AmpedMany<Ms...>& amped) {
  std::get<0>(amped.models).amp()->release();
}

/// @cond
template <class M>
Amped<M> initialize(M, const Optimizer&, const Options& = {}) {
  static_assert(detail::never<M>,
                "initialize takes the optimizer that another initialize was given, not the one "
                "that it returned: its groups already contain masters");
}

template <class T = void>
void initialize(std::initializer_list<detail::AnyValue>, const OptimizerRefs&,
                const Options& = {}) {
  static_assert(detail::never<T>,
                "several models go into a tuple: "
                "initialize(std::make_tuple(a, b), {adam, sgd}, opt_level)");
}

template <class M, class... Args, detail::IfModule<M> = 0>
void initialize(M&&, Args&&...) {
  static_assert(
      detail::never<M>,
      "initialize refers to the module, which must outlive the result: give it a variable");
}

template <class T, class... Args>
void initialize(const std::unique_ptr<T>&, Args&&...) {
  static_assert(detail::never<T>,
                "a model must be shared with its Model: make it with std::make_shared, or move the "
                "std::unique_ptr into a std::shared_ptr");
}

namespace detail {

template <class T>
constexpr bool has_state_to_save = std::is_same_v<T, Optimizer>;
template <class M>
constexpr bool has_state_to_save<Amped<M>> = true;
template <class... Ms>
constexpr bool has_state_to_save<AmpedMany<Ms...>> = true;

}  // namespace detail

template <class T, class = std::enable_if_t<detail::has_state_to_save<T>>>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const T&) {
  static_assert(detail::never<T>,
                "what initialize returned is saved by torchamp::save(amped, path), with its "
                "masters and loss scales; torch::save(model, path) saves the model alone");
  return archive;
}

template <class T, class = std::enable_if_t<detail::has_state_to_save<T>>>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, T&) {
  static_assert(detail::never<T>,
                "what initialize returned is loaded by torchamp::load(amped, path), with its "
                "masters and loss scales; torch::load(model, path) loads the model alone");
  return archive;
}
/// @endcond

/// For torch::save(model, file): writes the module as LibTorch does, in float32 with the masters'
/// values, for torch::load into a plain module. torch::save of the module itself does the same.
template <class M>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const Model<M>& model) {
  detail::save_module(*model.amp(), *detail::module_of(model.module()), archive);
  return archive;
}

/// For torch::load(model, file): reads what torch::save wrote of a float32 module or of a model,
/// into module and masters. Throws, and changes nothing, if torch::load into a float32 module would
/// throw, or if sizes differ.
template <class M>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           const Model<M>& model) {
  detail::load_module(*model.amp(), *detail::module_of(model.module()), archive);
  return archive;
}

/// The tensors that `optimizer` steps: clip the grads of these, after the backward.
inline std::vector<at::Tensor> master_params(const Optimizer& optimizer) {
  return optimizer.master_params();
}

/// Makes the optimizer's masters what the model holds now. Needed only after writes that bypass
/// PyTorch's version counters, for example through `.data()` or data pointers.
TORCHAMP_API void refresh_masters(const Optimizer& optimizer);

/// @}

}  // namespace torchamp

// The entry point: initialize.
#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/detail/export.h>
#include <torchamp/detail/mistakes.h>
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

/// Why what initialize returns must not be dropped.
#define TORCHAMP_DROPPED \
  "call and step what initialize returns; without it, nothing scales, casts or updates masters"

namespace torchamp {
namespace detail {

using Amps = std::vector<std::shared_ptr<Amp>>;

/// The Amps of a Model or an Optimizer, a vector of one of both, or a tuple of Models.
template <class Handle>
auto amps_of(const Handle& handle) -> decltype(Amps{handle.amp()}) {
  return {handle.amp()};
}
template <class Handle>
auto amps_of(const std::vector<Handle>& handles) -> decltype(amps_of(handles.front())) {
  Amps amps;
  for (const Handle& handle : handles) amps.push_back(handle.amp());
  return amps;
}
template <class... Ms>
Amps amps_of(const std::tuple<Model<Ms>...>& models) {
  return std::apply([](const auto&... each) { return Amps{each.amp()...}; }, models);
}

}  // namespace detail

/// @addtogroup choose
/// @{

/// The result of initialize(model, optimizer); `auto& [model, optimizer] = amped;` if you like.
template <class M>
struct TORCHAMP_NODISCARD(TORCHAMP_DROPPED) Amped {
  Model<M> model;       ///< call this instead of the module
  Optimizer optimizer;  ///< step this instead of the given optimizer

  /// Its scalers, masters and casts.
  std::shared_ptr<Amp> amp() const { return model.amp(); }
};

/// The result of initialize for one model and several optimizers.
template <class M>
struct TORCHAMP_NODISCARD(TORCHAMP_DROPPED) AmpedModel {
  Model<M> model;                     ///< call this instead of the module
  std::vector<Optimizer> optimizers;  ///< in the order in which they were given

  /// Its scalers, masters and casts.
  std::shared_ptr<Amp> amp() const { return model.amp(); }
};

/// The result of initialize for several models, in the order in which they were given.
template <class Models>
struct TORCHAMP_NODISCARD(TORCHAMP_DROPPED) AmpedModels {
  Models models;                      ///< a tuple of Models, or a vector of one kind
  std::vector<Optimizer> optimizers;  ///< none, if none were given

  /// Its scalers, masters and casts.
  std::shared_ptr<Amp> amp() const { return detail::amps_of(models).front(); }
};
/// The result of initialize for a tuple of models.
template <class... Ms>
using AmpedMany = AmpedModels<std::tuple<Model<Ms>...>>;
/// The result of initialize for a vector of models, as of an ensemble.
template <class M>
using AmpedVector = AmpedModels<std::vector<Model<M>>>;

/// The result of initialize for std::tie of `n_optimizers` optimizers, and a model or a std::tie of
/// models, which names all of them at once:
///
///     auto amped = amp::initialize(std::tie(actor, critic), std::tie(of_actor, of_critic), "O2");
///     auto& [actor_model, critic_model, actor_optimizer, critic_optimizer] = amped;
template <size_t n_optimizers, class... Ms>
struct TORCHAMP_NODISCARD(TORCHAMP_DROPPED) AmpedTie : AmpedMany<Ms...> {
  /// Models, and then optimizers.
  template <size_t i>
  auto& get() {
    if constexpr (i < sizeof...(Ms)) {
      return std::get<i>(this->models);
    } else {
      return this->optimizers[i - sizeof...(Ms)];
    }
  }
};

namespace detail {

/// A model of any kind, in braces, or what no other function takes.
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
constexpr bool is_several = false;
template <class... Ms>
constexpr bool is_several<std::tuple<Ms...>> = true;
template <class M>
constexpr bool is_several<std::vector<M>> = true;
template <class M>
using IfModule = std::enable_if_t<is_module<M>, int>;
template <class M>
using IfSeveral = std::enable_if_t<is_several<M>, int>;
template <class M>
using IfHandle = std::enable_if_t<!is_module<M> && !is_several<M>, int>;

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

/// The handles of all optimizers of an Amp.
TORCHAMP_API std::vector<Optimizer> handles(const std::shared_ptr<Amp>& amp);
/// Keeps an optimizer alive as long as `amp`.
TORCHAMP_API void own(const Amp& amp, std::shared_ptr<torch::optim::Optimizer> optimizer);
/// Makes models and optimizers plain again.
TORCHAMP_API void release(const Amp& amp);

/// A pointer that does not own, by which LibTorch's functions find the module itself.
template <class M>
std::shared_ptr<M> unowned(M& module) {
  return std::shared_ptr<M>(&module, [](M*) {});
}

template <class M>
auto handle_of(M& model) {
  if constexpr (is_module<M>) {
    return unowned(model);
  } else {
    return model;
  }
}

template <class M>
std::shared_ptr<torch::nn::Module> module_of(const M& model) {
  static_assert(has_module<M>,
                "a model must be a holder (of TORCH_MODULE, torch::nn::Sequential, "
                "torch::nn::AnyModule), a std::shared_ptr to a torch::nn::Module, or a module "
                "that the program keeps");
  if constexpr (has_module<M>) return model.ptr();
}

template <class T>
std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<T>& module) {
  static_assert(has_module<std::shared_ptr<T>>, "a model must be a torch::nn::Module");
  return module;
}

/// `amped` as what initialize returns for std::tie of `n_optimizers` optimizers.
template <size_t n_optimizers, class... Ms>
AmpedTie<n_optimizers, Ms...> tied(AmpedMany<Ms...> amped) {
  return {std::move(amped)};
}

TORCHAMP_API void save_module(Amp& amp, const torch::nn::Module& module,
                              torch::serialize::OutputArchive& archive);
TORCHAMP_API void load_module(Amp& amp, torch::nn::Module& module,
                              torch::serialize::InputArchive& archive);

}  // namespace detail

/// Prepares models and optimizers for training at `options`' level. The models must be on their
/// device and already passed to the optimizers; what trains must be float32. They are cast in
/// place; parameters keep their identity, and the optimizers' groups and states are of them. They
/// get float32 masters if the level uses them.
///
/// Throws if an option contradicts the level or a model that trains is not float32, before anything
/// is changed.
template <class... Ms>
AmpedMany<Ms...> initialize(std::tuple<Ms...> models, const OptimizerRefs& optimizers,
                            const Options& options = {}) {
  static_assert(sizeof...(Ms) > 0,
                "initialize takes one model or more; parameters without a module go into one, by "
                "register_parameter");
  const auto modules_of = [](const Ms&... each) {
    return detail::Modules{detail::module_of(each)...};
  };
  const auto amp = std::make_shared<Amp>(std::apply(modules_of, models), optimizers, options);
  const auto wrap = [&amp](const Ms&... each) {
    return std::tuple<Model<Ms>...>(Model<Ms>(each, amp)...);
  };
  return {std::apply(wrap, models), detail::handles(amp)};
}

/// Takes `std::tie(generator, critic)`: holders, and modules that the program keeps, which must
/// outlive the result.
template <class M, class... Ms>
auto initialize(std::tuple<M&, Ms&...> models, const OptimizerRefs& optimizers,
                const Options& options = {}) {
  const auto handles = [](auto&... each) { return std::make_tuple(detail::handle_of(each)...); };
  return initialize(std::apply(handles, models), optimizers, options);
}

/// Takes models of one kind, as of an ensemble. Throws ValueError for none.
template <class M>
AmpedVector<M> initialize(const std::vector<M>& models, const OptimizerRefs& optimizers,
                          const Options& options = {}) {
  TORCH_CHECK_VALUE(!models.empty(), "initialize: expected at least one model, got none");
  detail::Modules modules;
  for (const M& model : models) modules.push_back(detail::module_of(model));
  const auto amp = std::make_shared<Amp>(std::move(modules), optimizers, options);
  AmpedVector<M> result{{}, detail::handles(amp)};
  for (const M& model : models) result.models.emplace_back(model, amp);
  return result;
}

/// Several models, in a tuple or a vector, and one optimizer.
template <class Models, detail::IfSeveral<Models> = 0>
auto initialize(Models models, torch::optim::Optimizer& optimizer TORCHAMP_LIFETIMEBOUND,
                const Options& options = {}) {
  return initialize(std::move(models), OptimizerRefs{optimizer}, options);
}

/// Several models alone.
template <class Models, detail::IfSeveral<Models> = 0>
auto initialize(Models models, const Options& options = {}) {
  return initialize(std::move(models), OptimizerRefs(), options);
}

/// A model or a tuple of models, and optimizers by std::tie, which must outlive the result.
template <class Models, class O, class... Os, std::enable_if_t<!detail::is_module<Models>, int> = 0,
          class = std::enable_if_t<detail::is_tie<std::tuple<O&, Os&...>>>>
auto initialize(Models models, std::tuple<O&, Os&...> optimizers, const Options& options = {}) {
  const auto refs = std::apply([](auto&... each) { return OptimizerRefs{each...}; }, optimizers);
  if constexpr (detail::is_several<Models>) {
    return detail::tied<1 + sizeof...(Os)>(initialize(std::move(models), refs, options));
  } else {
    return detail::tied<1 + sizeof...(Os)>(
        initialize(std::make_tuple(std::move(models)), refs, options));
  }
}

/// One model and several optimizers, `{adam, sgd}`, which must outlive the result.
template <class M, detail::IfHandle<M> = 0>
AmpedModel<M> initialize(M model, const OptimizerRefs& optimizers, const Options& options = {}) {
  auto many = initialize(std::make_tuple(std::move(model)), optimizers, options);
  return {std::get<0>(many.models), std::move(many.optimizers)};
}

/// One model and one optimizer, which must outlive the result.
template <class M, detail::IfHandle<M> = 0>
Amped<M> initialize(M model, torch::optim::Optimizer& optimizer TORCHAMP_LIFETIMEBOUND,
                    const Options& options = {}) {
  auto several = initialize(std::move(model), OptimizerRefs{optimizer}, options);
  return {std::move(several.model), std::move(several.optimizers.front())};
}

/// Takes an optimizer that the result keeps alive. A std::unique_ptr to one becomes a shared
/// pointer.
template <class M, detail::IfHandle<M> = 0>
Amped<M> initialize(M model, std::shared_ptr<torch::optim::Optimizer> optimizer,
                    const Options& options = {}) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "initialize: expected an optimizer, got a null pointer");
  auto amped = initialize(std::move(model), *optimizer, options);
  detail::own(*amped.model.amp(), std::move(optimizer));
  return amped;
}

/// Takes an optimizer that moves into the result: `initialize(net, torch::optim::Adam(…), "O2")`,
/// or `std::move(adam)` in a function that returns the result.
template <class M, class O, detail::IfHandle<M> = 0,
          class = std::enable_if_t<std::is_base_of_v<torch::optim::Optimizer, O>>>
Amped<M> initialize(M model, O&& optimizer, const Options& options = {}) {
  return initialize(std::move(model),
                    std::shared_ptr<torch::optim::Optimizer>(new O(std::move(optimizer))), options);
}

/// A model alone.
template <class M, detail::IfHandle<M> = 0>
TORCHAMP_NODISCARD(TORCHAMP_DROPPED)
Model<M> initialize(M model, const Options& options = {}) {
  return initialize(std::move(model), OptimizerRefs(), options).model;
}

/// All of these for a module that the program keeps, which must outlive the result.
template <class M, class... Args, detail::IfModule<M> = 0>
auto initialize(M& module TORCHAMP_LIFETIMEBOUND, Args&&... args) {
  return initialize(detail::unowned(module), std::forward<Args>(args)...);
}

/// Takes a module that the program keeps, and several optimizers, `{adam, sgd}`.
template <class M, detail::IfModule<M> = 0>
auto initialize(M& module TORCHAMP_LIFETIMEBOUND, const OptimizerRefs& optimizers,
                const Options& options = {}) {
  return initialize(detail::unowned(module), optimizers, options);
}

namespace detail {

template <class T, class = void>
constexpr bool has_amp = false;
template <class T>
constexpr bool has_amp<T, std::void_t<decltype(Amps{std::declval<const T&>().amp()})>> = true;

/// Allows the results of initialize, and a Model of one.
template <class T>
using IfAmped = std::enable_if_t<has_amp<T> && !std::is_same_v<T, Optimizer>, int>;
/// Allows what torch::save does not take: the results of initialize, and an Optimizer of one.
template <class T>
using IfNotModel = std::enable_if_t<has_amp<T> && !is_model<T>, int>;

template <class... Handles>
using IfHandles = std::void_t<decltype(amps_of(std::declval<const Handles&>()))...>;

/// The Amp of all. `function` names the caller in the ValueError for no model, and for models and
/// optimizers of two initializes.
TORCHAMP_API Amp& common_amp(const char* function, const Amps& of_models,
                             const Amps& of_optimizers);

}  // namespace detail

/// The inverse of initialize, to train, save or initialize the models in another way: all models
/// and optimizers that the initialize was given are plain float32 ones again, in place. Parameters
/// have their masters' values, bit for bit, and optimizers step them with the states that they
/// have. Grads are dropped, as by zero_grad(). What initialize returned throws from then on, except
/// Optimizer::wrapped().
///
/// Throws RuntimeError, and changes nothing, while a scale_loss is open, if a parameter changed its
/// dtype since initialize, and without masters for optimizers that torchamp::save does not know.
///
/// amped: what initialize returned, or a Model of it.
template <class T, detail::IfAmped<T> = 0>
void release(const T& amped) {
  detail::release(*amped.amp());
}

/// The value of a model's parameter or buffer: if it has 16 bits a float32 copy, of its master if
/// it has one; else the tensor itself. For what reads weights one by one; Float32Params gives all
/// of them at once.
///
/// amped: what initialize returned, or a Model of it.
template <class T, detail::IfAmped<T> = 0>
at::Tensor float32_value(const T& amped, const at::Tensor& tensor) {
  return amped.amp()->value(tensor);
}

/// @cond
template <class T = void>
void release(const detail::AnyValue&) {
  static_assert(detail::never<T>, "release takes what initialize returned: amped, or amped.model");
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

template <class M, class... Args, detail::IfMistaken<M, Args...> = 0>
void initialize(M&&, Args&&...) {
  using detail::Mistake;
  constexpr Mistake kMistake = detail::mistake<M, Args...>();
  static_assert(kMistake != Mistake::kUniqueModel,
                "a model must be shared with its Model: make it with std::make_shared, or move the "
                "std::unique_ptr into a std::shared_ptr");
  static_assert(kMistake != Mistake::kModelPointer,
                "initialize takes the module itself, *model, or a std::shared_ptr to it");
  static_assert(kMistake != Mistake::kScriptModule,
                "initialize takes modules of torch::nn; a torch::jit::Module trains by "
                "torchamp::autocast and torchamp::GradScaler");
  static_assert(kMistake != Mistake::kModelAgain,
                "initialize takes the net itself, and a second time after "
                "torchamp::release(model)");
  static_assert(kMistake != Mistake::kModuleCopies,
                "in a tuple or vector a module would be a copy: give a holder or a "
                "std::shared_ptr of each, or the modules by std::tie");
  static_assert(kMistake != Mistake::kSwapped,
                "the model comes first: initialize(model, optimizer, opt_level)");
  static_assert(kMistake != Mistake::kOptimizerPointer,
                "initialize takes the optimizer itself: *optimizer");
  static_assert(kMistake != Mistake::kUniqueOptimizer,
                "initialize takes the optimizer itself, *optimizer, or the std::unique_ptr by "
                "std::move");
  static_assert(kMistake != Mistake::kConstOptimizer,
                "initialize takes an optimizer that can be stepped, not a const one");
  static_assert(kMistake != Mistake::kOptimizers,
                "several optimizers are given by reference, {adam, sgd}, or in a "
                "torchamp::OptimizerRefs, to which push_back(*optimizer) adds one");
  static_assert(kMistake != Mistake::kOptimizerOptions,
                "initialize takes the optimizer that is made of the model's parameters and these "
                "options");
  static_assert(kMistake != Mistake::kInitialized,
                "initialize takes the optimizer that another initialize was given, not the one "
                "that it returned: its parameters have masters already");
  static_assert(kMistake != Mistake::kNumber,
                "an opt level is a text such as \"O2\", or OptLevel::O2, not a number");
  static_assert(kMistake != Mistake::kOptionAfterLevel,
                "options beside the level are setters: torchamp::Options(\"O2\").loss_scale(128)");
  static_assert(kMistake != Mistake::kArguments,
                "initialize takes a model, an optimizer and a level such as \"O2\", in this order; "
                "several models go into std::tie(a, b), several optimizers into {adam, sgd}");
}

template <class T, detail::IfNotModel<T> = 0>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const T&) {
  static_assert(detail::never<T>,
                "what initialize returned is saved by torchamp::save(amped, path), with its "
                "masters and loss scales; torch::save(model, path) saves the model alone");
  return archive;
}

template <class T, detail::IfNotModel<T> = 0>
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

/// @cond
template <size_t n_optimizers, class... Ms>
struct std::tuple_size<torchamp::AmpedTie<n_optimizers, Ms...>>
    : std::integral_constant<size_t, sizeof...(Ms) + n_optimizers> {};
template <size_t i, size_t n_optimizers, class... Ms>
struct std::tuple_element<i, torchamp::AmpedTie<n_optimizers, Ms...>> {
  using type = std::remove_reference_t<
      decltype(std::declval<torchamp::AmpedTie<n_optimizers, Ms...>&>().template get<i>())>;
};
/// @endcond

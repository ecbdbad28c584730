// The entry point: initialize.
#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/model.h>
#include <torchamp/optimizer.h>

#include <functional>
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

template <class M, class = void>
constexpr bool has_module = false;
template <class T>
constexpr bool has_module<std::shared_ptr<T>> = std::is_base_of_v<torch::nn::Module, T>;
template <class M>
constexpr bool has_module<M, std::void_t<decltype(std::declval<const M&>().ptr())>> =
    !std::is_base_of_v<torch::nn::Module, M>;

template <class M>
std::shared_ptr<torch::nn::Module> module_of(const M& model) {
  static_assert(has_module<M>,
                "a model must be a holder (of TORCH_MODULE, torch::nn::Sequential, "
                "torch::nn::AnyModule) or a std::shared_ptr to a torch::nn::Module; a module by "
                "value would be a copy: make it with std::make_shared");
  return model.ptr();
}

template <class T>
std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<T>& module) {
  static_assert(has_module<std::shared_ptr<T>>, "a model must be a torch::nn::Module");
  return module;
}

}  // namespace detail

/// Prepares models and optimizers for training at `options`' level. The models must be float32, on
/// their device, and already passed to the optimizers. They are cast in place; parameters keep
/// their identity. The optimizers' groups get float32 masters if the level uses them.
///
/// Throws if an option contradicts the level or a model is not float32, before anything is changed.
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

/// One model and one optimizer.
template <class M>
Amped<M> initialize(M model, torch::optim::Optimizer& optimizer, const Options& options = {}) {
  auto many =
      initialize(std::make_tuple(std::move(model)), OptimizerRefs{std::ref(optimizer)}, options);
  return {std::get<0>(many.models), many.optimizers.front()};
}

/// An optimizer that initialize returned is not accepted: pass the one that it wraps, or a new one.
template <class M>
Amped<M> initialize(M model, const Optimizer& optimizer, const Options& options = {}) = delete;

/// A model alone.
template <class M>
Model<M> initialize(M model, const Options& options = {}) {
  return std::get<0>(
      initialize(std::make_tuple(std::move(model)), OptimizerRefs(), options).models);
}

/// The tensors that `optimizer` steps: clip the grads of these, after the backward.
inline std::vector<at::Tensor> master_params(const Optimizer& optimizer) {
  return optimizer.master_params();
}

/// Copies the model's parameters to the optimizer's masters. Needed only after writes that bypass
/// PyTorch's version counters, for example through data pointers.
inline void refresh_masters(const Optimizer& optimizer) {
  optimizer.master_weights().force_refresh();
}

/// @}

}  // namespace torchamp

// The model that initialize and cast_for_inference return.
#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/cast.h>
#include <torchamp/detail/misuse.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

/// A function of a module that a Model does not have.
#define TORCHAMP_BY_ARROW(function)                                                       \
  template <class... Args>                                                                \
  void function(Args&&...) const {                                                        \
    static_assert(detail::never<Args...>,                                                 \
                  "the module's functions are called through the arrow: model->train(), " \
                  "model->parameters()");                                                 \
  }

namespace torchamp {
namespace detail {

template <class M, class = void>
constexpr bool is_holder = false;  // of a module that `*` gives
template <class M>
constexpr bool is_holder<M, std::void_t<decltype(*std::declval<M&>())>> = true;

/// A scope around a forward: masters and model are synchronized, and this thread's ops are cast as
/// `amp` says.
class TORCHAMP_API Forward {
 public:
  /// Throws RuntimeError if the model was released.
  explicit Forward(const Amp& amp);
  ~Forward();
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  /// Throws the exception of the forward that is being handled, with cause and remedy where it is
  /// about dtypes: a c10::Error or std::runtime_error with more text, of another type nested in
  /// one.
  [[noreturn]] void rethrow_explained() const;

 private:
  std::string explanation(const char* message) const;

  struct Casts;
  Session& session_;
  std::unique_ptr<Casts> casts_;
};

/// The dtype that a forward's inputs are cast to; empty if the level does not cast them.
TORCHAMP_API std::optional<at::ScalarType> input_type(const Amp& amp);
/// The dtype that a forward's outputs are cast to; empty if the level does not cast them.
TORCHAMP_API std::optional<at::ScalarType> output_type(const Amp& amp);

template <class T, class = void>
constexpr bool has_forward = false;
template <class Module, class... Args>
constexpr bool
    has_forward<Module(Args...),
                std::void_t<decltype(std::declval<Module&>().forward(std::declval<Args>()...))>> =
        true;

/// Whether the module of a holder, a pointer or an AnyModule can be called with `Args`. The class
/// torch::nn::Module says itself that it cannot.
template <class M, class... Args>
constexpr bool takes() {
  if constexpr (is_holder<M>) {
    using Module = std::decay_t<decltype(*std::declval<M&>())>;
    return std::is_same_v<Module, torch::nn::Module> || has_forward<Module(Args...)>;
  } else {
    return has_forward<M(Args...)>;
  }
}

struct TheModulesForwardDoesNotTakeTheseArguments;

}  // namespace detail

/// @addtogroup cast
/// @{

/// A handle to a module (a holder such as `torch::nn::Sequential`, a `torch::nn::AnyModule`, or a
/// `std::shared_ptr` to a module) whose calls cast their inputs to the opt level's dtype and their
/// outputs to float32: tensors, and the Parts of other values. What the module's function writes to
/// inputs that it takes by reference comes back. Other inputs reach the function unchanged. All
/// other members are the module's, through ->. A const Model may be called, as a const pointer may
/// be followed.
template <class M>
class Model {
 public:
  /// Called by initialize, not by programs.
  Model(M module, std::shared_ptr<Amp> amp) : module_(std::move(module)), amp_(std::move(amp)) {}
  /// A copy refers to the same module. Moves copy, so that a Model is never empty.
  Model(const Model&) = default;
  /// Copies as the constructor does.
  Model& operator=(const Model&) = default;
  /// Does not compile, like the module's functions below.
  Model() {
    static_assert(detail::never<M>,
                  "initialize makes Models: store its result in a std::optional, or in the "
                  "initializer list of a constructor");
  }

  /// The module's forward on cast inputs, and its outputs cast. Throws RuntimeError if a parameter
  /// changed its dtype since initialize, as after torch::load and `to(kHalf)`.
  template <class... Args, std::enable_if_t<detail::takes<M, Args&&...>(), int> = 0>
  auto operator()(Args&&... args) const {
    return forward(std::forward<Args>(args)...);
  }
  /// @cond
  template <class... Args, std::enable_if_t<!detail::takes<M, Args&&...>(), int> = 0,
            class = detail::TheModulesForwardDoesNotTakeTheseArguments>
  void operator()(Args&&... args) const = delete;
  /// @endcond

  /// Calls the model. Give `Return` where the module's own forward takes it: Sequential's and
  /// AnyModule's, whose result is a tensor otherwise.
  template <class Return = void, class... Args>
  auto forward(Args&&... args) const {
    static_assert(!std::is_same_v<std::decay_t<decltype(**this)>, torch::nn::Module>,
                  "torch::nn::Module has no forward: give initialize the pointer or holder of the "
                  "model's own class");
    const auto call_forward = [](auto& module, auto&&... cast) {
      if constexpr (std::is_void_v<Return>) {
        return module.forward(std::forward<decltype(cast)>(cast)...);
      } else {
        return module.template forward<Return>(std::forward<decltype(cast)>(cast)...);
      }
    };
    return call(call_forward, std::forward<Args>(args)...);
  }

  /// Calls another function of the module, `model.call(&NetImpl::decode, z)`, or a callable that
  /// takes the module first, with the casts of forward.
  template <class Function, class... Args>
  auto call(const Function& function, Args&&... args) const {
    static_assert(!std::is_member_function_pointer_v<Function> ||
                      std::is_invocable_v<Function, decltype(**this), Args&&...>,
                  "the function does not take these arguments; a pointer to it knows no default "
                  "arguments: give all, or call it by model->function(model.cast(x))");
    if (!amp_->enabled()) return std::invoke(function, **this, std::forward<Args>(args)...);
    const detail::Forward forward(*amp_);
    [[maybe_unused]] const auto dtype = detail::input_type(*amp_);
    return call_cast(forward, function, detail::Argument<Args>(std::forward<Args>(args), dtype)...);
  }

  /// `value` as call() would pass it, with its floating tensors in the dtype of the model's inputs:
  /// `net->act(model.cast(x), epsilon)`. What such a call returns is not cast.
  template <class T>
  T cast(T value) const {
    const auto dtype = detail::input_type(*amp_);
    return dtype ? cast_floating(std::move(value), *dtype) : std::move(value);
  }

  /// The module itself, for everything except calls.
  auto* operator->() const { return &**this; }
  /// The module itself, as a reference.
  auto& operator*() const { return target(module_); }

  /// @cond
  TORCHAMP_BY_ARROW(train);
  TORCHAMP_BY_ARROW(eval);
  TORCHAMP_BY_ARROW(to);
  TORCHAMP_BY_ARROW(zero_grad);
  TORCHAMP_BY_ARROW(parameters);
  TORCHAMP_BY_ARROW(named_parameters);
  /// @endcond

  /// The holder or pointer that initialize was given.
  M& module() const { return module_; }
  /// Its scalers, masters and casts.
  const std::shared_ptr<Amp>& amp() const { return amp_; }

 private:
  /// The object that has the forward.
  template <class Holder>
  static auto& target(Holder& holder) {
    if constexpr (detail::is_holder<M>) {
      return *holder;
    } else {
      return holder;
    }
  }

  template <class Function, class... Arguments>
  auto call_cast(const detail::Forward& forward, const Function& function,
                 Arguments... arguments) const {
    const auto give_back = [&] { (arguments.give_back(detail::output_type(*amp_)), ...); };
    try {
      using Result = std::invoke_result_t<Function, decltype(**this), decltype(arguments.get())...>;
      if constexpr (std::is_void_v<Result>) {
        std::invoke(function, **this, arguments.get()...);
        give_back();
      } else {
        auto result = output(std::invoke(function, **this, arguments.get()...));
        give_back();
        return result;
      }
    } catch (const std::exception&) {
      forward.rethrow_explained();
    }
  }

  template <class T>
  T output(T value) const {
    static_assert(is_understood<T>,
                  "forward returns a type in which torchamp cannot find tensors to cast: "
                  "declare `inline auto amp_members(Output& output) { return "
                  "std::tie(output.a, output.b); }` beside the type, with its members that hold "
                  "tensors (see <torchamp/parts.h>)");
    const auto dtype = detail::output_type(*amp_);
    return dtype ? cast_floating(std::move(value), *dtype) : std::move(value);
  }

  mutable M module_;  ///< a handle too
  std::shared_ptr<Amp> amp_;
};

/// The module's own text, and a line of its Amp.
template <class M>
std::ostream& operator<<(std::ostream& stream, const Model<M>& model) {
  if constexpr (std::is_base_of_v<torch::nn::Module, std::decay_t<decltype(*model)>>) {
    stream << *model;
  } else {
    stream << *model->ptr();  // an AnyModule's
  }
  return stream << '\n' << *model.amp();
}

/// @}

}  // namespace torchamp

#undef TORCHAMP_BY_ARROW

// Which opt level fits a model: one iteration in float32, and one at each level.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>
#include <torchamp/initialize.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace torchamp {
/// @addtogroup choose
/// @{

/// The results of preflight(). `std::cout << found` prints a row per level, and what to do.
struct TORCHAMP_API Preflight {
  /// The effect of a level on one iteration.
  struct Verdict {
    OptLevel level;      ///< O1 to O5
    bool fits;           ///< by the rule of preflight()
    std::string reason;  ///< why not, or how far it is from float32
    /// The loss's difference from float32's, relative; empty where the iteration did not end with
    /// finite numbers.
    std::optional<double> loss_error;
    std::optional<double> grad_error;  ///< the same of the norm of all parameters' grads
    std::optional<double> loss_scale;  ///< at which no grad overflows; empty without loss scaling
    /// The time of the fastest of some iterations; empty where the level does not fit.
    std::optional<double> milliseconds;
  };

  /// The first of O4, O1, O5 and O2 that fits and takes less than 90 % of float32's time, or was
  /// not timed, else O0; on GPUs before sm_80, which have no bfloat16, of O1, O4, O2 and O5.
  OptLevel recommended = OptLevel::O0;
  /// The time of the fastest of some iterations in float32; empty if the model takes one alone.
  std::optional<double> milliseconds;
  std::vector<Verdict> verdicts;  ///< of O1 to O5
  /// What to write otherwise, whatever the level, and what was left out.
  std::vector<std::string> notes;

  /// The verdict on one level. Throws ValueError for O0.
  const Verdict& verdict(OptLevel level) const;
};

/// The levels, and what each does.
TORCHAMP_API std::ostream& operator<<(std::ostream& stream, const Preflight& found);

namespace detail {

/// A model at a level, and a function that calls it and makes a loss.
struct ModelAtLevel {
  std::shared_ptr<Amp> amp;
  std::function<at::Tensor()> loss;
};

TORCHAMP_API Preflight preflight(torch::nn::Module& module,
                                 const std::function<ModelAtLevel(const Options&)>& initialize);

}  // namespace detail

/// Finds out which opt level fits a model, before initialize: runs one forward and backward in
/// float32, then one at each of O1 to O5, in place. Parameters, buffers, grads and torch's random
/// numbers are as before when it returns or throws; until then it keeps a copy of them.
///
/// model: what initialize takes, with float32 parameters.
/// loss_of: calls the model that it is given and returns a loss of one element.
///
///     const auto found = amp::preflight(net, [&](const auto& model) {
///       return torch::mse_loss(model(x), y);
///     });
///     std::cout << found << '\n';
///
/// A level fits if its loss is within 2 % of float32's, the grads of parameters within 50 % of
/// their norm, no parameter loses all its grads, buffers and inputs, rounded alone, leave what each
/// op of the forward returns within 10 %, and no buffer that the forward writes is rounded. Dropout
/// draws the same masks at each level; on CUDA attention and recurrent layers run without it. One
/// iteration does not show what later ones do. Where O5 fits and the model has linears for
/// Options::float8(), a note says whether that fits and pays, and which linears are slower by
/// themselves. Throws ValueError for a model that is not in float32 or has no parameter that
/// requires grad, and where the loss or the grads in float32 are not finite; RuntimeError while
/// casts are open in this thread; and what the float32 iteration throws.
template <class M, class LossOf, class = std::enable_if_t<!detail::is_module<M>>>
Preflight preflight(const M& model, const LossOf& loss_of) {
  static_assert(std::is_invocable_v<const LossOf&, const Model<M>&>,
                "preflight takes a function of a model, [&](const auto& model), that returns a "
                "loss");
  const auto module = detail::module_of(model);
  TORCH_CHECK_VALUE(module != nullptr, "preflight: expected a model, got a null pointer");
  return detail::preflight(*module, [&](const Options& options) {
    const auto at_level = std::make_shared<const Model<M>>(initialize(model, options));
    const auto loss = [at_level, &loss_of] { return at::Tensor(loss_of(*at_level)); };
    return detail::ModelAtLevel{at_level->amp(), loss};
  });
}

/// Takes a module itself.
template <class M, class LossOf, detail::IfModule<M> = 0>
Preflight preflight(M& module, const LossOf& loss_of) {
  return preflight(detail::unowned(module), loss_of);
}

/// @}

}  // namespace torchamp

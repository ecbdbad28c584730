// Averages of a model's weights: AveragedModel.
#pragma once

#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>
#include <torchamp/initialize.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace torchamp {
namespace detail {

/// A clone() of `module`, with its values in float32. Throws TypeError if it has no clone().
TORCHAMP_API std::shared_ptr<torch::nn::Module> clone_in_float32(const torch::nn::Module& module);

/// Gives `copy` the values of `module` in float32. Throws ValueError unless it has the same
/// parameters and buffers.
TORCHAMP_API void copy_in_float32(const torch::nn::Module& module, torch::nn::Module& copy);

/// Moves parameters of `averaged` towards those of `model`, by `weight` of the way, and copies
/// buffers.
TORCHAMP_API void average(const torch::nn::Module& model, const torch::nn::Module& averaged,
                          double weight);

/// Throws ValueError unless it is from 0 to 1.
TORCHAMP_API void check_decay(double decay);

template <class M>
M averaged_clone(const M& model) {
  using Module = std::decay_t<decltype(*model)>;
  return std::dynamic_pointer_cast<Module>(clone_in_float32(*module_of(model)));
}

}  // namespace detail

/// @addtogroup cast
/// @{

/// A float32 copy of a model, a holder or a `std::shared_ptr` to a module, whose parameters are
/// averages of the model's over the calls of update_parameters: of its masters where there are
/// some. Buffers are copied.
///
///     amp::AveragedModel target(model, /*decay=*/0.995);
///     optimizer.step();
///     target.update_parameters(model);
///     auto values = target(x);
///
/// The module must have clone(), for example by deriving from torch::nn::Cloneable; else it throws
/// TypeError. Give it a second module of the class instead:
///
///     amp::AveragedModel target(model, Net(), /*decay=*/0.995);
template <class M>
class AveragedModel {
 public:
  /// decay: of an exponential average, from 0 to 1; nullopt for the mean. Throws ValueError.
  explicit AveragedModel(const M& model, std::optional<double> decay = std::nullopt)
      : decay_(decay), module_(detail::averaged_clone(model)) {
    if (decay) detail::check_decay(*decay);
  }
  /// `copy`: a module like `model`, which it becomes a copy of. Throws ValueError unless it has the
  /// same parameters and buffers.
  AveragedModel(const M& model, M copy, std::optional<double> decay = std::nullopt)
      : decay_(decay), module_(std::move(copy)) {
    if (decay) detail::check_decay(*decay);
    detail::copy_in_float32(*detail::module_of(model), *detail::module_of(module_));
  }
  /// Averages a model that initialize or cast_for_inference returned.
  explicit AveragedModel(const Model<M>& model, std::optional<double> decay = std::nullopt)
      : AveragedModel(model.module(), decay) {}
  /// Averages such a model in `copy`.
  AveragedModel(const Model<M>& model, M copy, std::optional<double> decay = std::nullopt)
      : AveragedModel(model.module(), std::move(copy), decay) {}

  /// Averages the values that `model` has now; the first call copies them. Throws ValueError for a
  /// model with other parameters.
  void update_parameters(const M& model) {
    const double equal = 1.0 / static_cast<double>(n_averaged_ + 1);
    const double weight = decay_ && n_averaged_ > 0 ? 1.0 - *decay_ : equal;
    detail::average(*detail::module_of(model), *detail::module_of(module_), weight);
    ++n_averaged_;
  }
  /// Averages the values of a Model, as those of its module.
  void update_parameters(const Model<M>& model) { update_parameters(model.module()); }

  /// What the module's forward returns. It does not cast.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    return module_->forward(std::forward<Args>(args)...);
  }

  /// The float32 module. Averages may be called where they are const, as a const pointer may be
  /// followed.
  M& module() const { return module_; }
  /// Its functions.
  auto* operator->() const { return &*module_; }

  /// How many calls of update_parameters made the averages.
  int64_t n_averaged() const { return n_averaged_; }

  /// Writes the module, as torch::save of a plain one, and n_averaged.
  void save(torch::serialize::OutputArchive& archive) const {
    detail::module_of(module_)->save(archive);
    archive.write("n_averaged", at::tensor(n_averaged_), /*is_buffer=*/true);
  }
  /// Reads what save() wrote, or a plain module, which counts as one average.
  void load(torch::serialize::InputArchive& archive) {
    detail::module_of(module_)->load(archive);
    at::Tensor count;
    const bool is_average = archive.try_read("n_averaged", count, /*is_buffer=*/true);
    n_averaged_ = is_average ? count.item<int64_t>() : 1;
  }

 private:
  std::optional<double> decay_;
  int64_t n_averaged_ = 0;
  mutable M module_;  ///< a handle
};

/// For torch::save(average, file).
template <class M>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const AveragedModel<M>& average) {
  average.save(archive);
  return archive;
}

/// For torch::load(average, file).
template <class M>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           AveragedModel<M>& average) {
  average.load(archive);
  return archive;
}

/// @}

}  // namespace torchamp

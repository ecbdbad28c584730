// Hyperparameters of a fused optimizer's group, with chained setters like LibTorch's.
#pragma once

#include <torch/optim/optimizer.h>
#include <torchamp/fused_step.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// The decay rates of two moments, each in [0, 1).
using Betas = std::tuple<double, double>;

/// A value, and whether it was set.
template <class T>
struct Option {
  T value;     ///< set, or the default
  bool given;  ///< whether it was set
};

/// An option, for files, checks and steps.
struct OptionField {
  const char* name;  ///< in files
  std::variant<Option<double>*, Option<bool>*, Option<Betas>*, Option<std::optional<double>>*>
      option;  ///< where it is stored
  /// LibTorch's optimizer of the same algorithm lacks it, and so do its files.
  bool ours_alone = false;
  /// Smallest value allowed. Betas must also be in [0, 1).
  double minimum = 0.0;
};

/// The options of a fused optimizer's group.
///
/// Every option is a setter that chains, `options.lr(1e-3)`, and a getter, `options.lr()`. The
/// classes list them with their defaults.
class TORCHAMP_API FusedOptions : public torch::optim::OptimizerOptions {
 public:
  /// The optimizer's name in messages.
  virtual const char* optimizer_name() const = 0;
  /// The algorithm; some options select another one, such as momentum.
  virtual StepAlgorithm algorithm() const = 0;
  /// The group's row for fused_step: its columns, the rest zeros.
  std::array<double, kHyperparameters> hyper() const;
  /// Throws ValueError for values out of their range.
  virtual void check() const;
  /// Copies unset options from `defaults`, which is of the same class.
  void inherit(const FusedOptions& defaults);

  /// The learning rate, for LibTorch's schedulers.
  double get_lr() const override;
  /// Like lr(), for LibTorch's schedulers.
  void set_lr(const double lr) override;
  /// Reads LibTorch's files too. Throws ValueError if the file's optimizer has other options.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes what LibTorch's optimizer of the same algorithm reads, and more.
  void serialize(torch::serialize::OutputArchive& archive) const override;

  /// Whether all values are equal, and of one class.
  friend TORCHAMP_API bool operator==(const FusedOptions& left, const FusedOptions& right);

  /// In the order of fused_step's columns, of which the learning rate is the first.
  virtual std::vector<OptionField> fields() = 0;

 private:
  /// The fields, read-only.
  std::vector<OptionField> fields() const { return const_cast<FusedOptions*>(this)->fields(); }
};

/// Implements the part that depends on the options' class.
template <class Options>
class FusedOptionsOf : public FusedOptions {
 public:
  /// A copy.
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Options>(static_cast<const Options&>(*this));
  }

 protected:
  using Derived = Options;  ///< what setters return
};

/// @}

}  // namespace torchamp::optim

/// An option with its default: a setter that returns the options, and a getter.
#define TORCHAMP_OPTION(T, name, default_value) \
 public:                                        \
  Derived& name(T new_##name) {                 \
    name##_ = {std::move(new_##name), true};    \
    return static_cast<Derived&>(*this);        \
  }                                             \
  const T& name() const {                       \
    return this->name##_.value;                 \
  }                                             \
                                                \
 protected:                                     \
  ::torchamp::optim::Option<T> name##_ {        \
    default_value, false                        \
  }

// Stage 7: step. The base class of the fused optimizers.
#pragma once

#include <torchamp/detail/misuse.h>
#include <torchamp/optim/fused_options.h>
#include <torchamp/optim/fused_param_state.h>

#include <memory>
#include <utility>
#include <vector>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// How a fused optimizer stores values, with chained setters like LibTorch's options:
/// `StorageOptions().state_dtype(torch::kBFloat16).stochastic_rounding(true)`.
class StorageOptions {
  /// float32, or bfloat16, which is rounded stochastically.
  TORCH_ARG(at::ScalarType, state_dtype) = at::kFloat;
  /// Whether bfloat16 parameters are rounded stochastically.
  TORCH_ARG(bool, stochastic_rounding) = false;
};

class FusedSteppers;

/// A LibTorch optimizer whose step is one pass over all parameters of a device.
///
/// Parameters and grads may be float16, bfloat16, float32 and float64, mixed; states are kept in
/// float32 (float64 for float64 parameters). Nothing waits for the device. LibTorch's schedulers
/// accept it. It exchanges files with LibTorch's optimizer of the same algorithm.
class TORCHAMP_API FusedOptimizer : public torch::optim::Optimizer {
 public:
  /// Parameters, and options that differ from the optimizer's.
  using Group = torch::optim::OptimizerParamGroup;

  /// Throws ValueError for options out of their range.
  FusedOptimizer(const std::vector<Group>& groups, std::unique_ptr<FusedOptions> defaults);

  /// Adds a group. Unset options default to the optimizer's. Call it on this class:
  /// torch::optim::Optimizer's own drops the options of optimizers that are not LibTorch's.
  /// Throws ValueError for another optimizer's options, for values out of their range and for
  /// parameters that are in a group already.
  void add_param_group(const Group& group);

  /// Steps every parameter that has a grad; returns what the closure returned.
  /// Throws TypeError for sparse grads, before anything is written.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// How states, and parameters without a master, are stored from the next step on. Existing states
  /// are converted. The next step throws ValueError as FusedStepper does.
  void set_storage(StorageOptions storage);
  /// What set_storage() was given last.
  const StorageOptions& storage() const { return storage_; }

  /// Writes groups, options and states. Waits for the device.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Loads the options and states of a file that this class, or LibTorch's of the same algorithm,
  /// has saved. Throws ValueError, and changes nothing, if the file's groups or its kind of
  /// optimizer differ.
  void load(torch::serialize::InputArchive& archive) override;

  /// @cond
  /// Null once it is moved.
  const std::shared_ptr<FusedSteppers>& steppers() const { return steppers_; }
  /// @endcond

 private:
  const char* name() const;
  void check_new_params(const std::vector<at::Tensor>& params) const;
  /// The options of a new group.
  std::unique_ptr<torch::optim::OptimizerOptions> complete(const Group& group) const;

  StorageOptions storage_;
  std::shared_ptr<FusedSteppers> steppers_;
};

/// The constructors, like LibTorch's.
template <class Options>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  /// `defaults`: for options that groups do not set. `storage`: as set_storage().
  explicit FusedOptimizerOf(const std::vector<Group>& groups, Options defaults = Options(),
                            StorageOptions storage = {})
      : FusedOptimizer(groups, std::make_unique<Options>(std::move(defaults))) {
    set_storage(storage);
  }
  /// One group.
  explicit FusedOptimizerOf(std::vector<at::Tensor> params, Options defaults = Options(),
                            StorageOptions storage = {})
      : FusedOptimizerOf(std::vector<Group>{Group(std::move(params))}, std::move(defaults),
                         storage) {}
  /// @cond
  template <class M, class... Args, class = decltype(std::declval<M&>()->parameters())>
  explicit FusedOptimizerOf(const M&, const Args&...)
      : FusedOptimizerOf(std::vector<at::Tensor>()) {
    static_assert(detail::never<M>,
                  "a fused optimizer takes parameters, and then options: "
                  "FusedAdam(net->parameters(), FusedAdamOptions(lr))");
  }
  /// @endcond
};

/// @}

}  // namespace torchamp::optim

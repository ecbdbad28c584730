// The options and states of both languages' fused optimizers.
#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/fused_step.h>

#include <string>
#include <vector>

namespace torchamp::optim {

/// An option of a fused optimizer.
struct OptionSpec {
  std::string name;              ///< in groups and files
  std::vector<double> defaults;  ///< of its columns in fused_step: two for betas, else one
  double minimum = 0.0;          ///< smallest value allowed
  bool ours_alone = false;  ///< torch's optimizer of the same algorithm, and its files, lack it

  /// Whether it is a pair of decay rates, each in [0, 1).
  bool is_betas() const { return defaults.size() == 2; }
};

/// The options of the optimizer of this name, such as FusedAdam, in the order of fused_step's
/// columns. Throws ValueError for another name.
TORCHAMP_API std::vector<OptionSpec> option_specs(const std::string& optimizer);

/// The states, numbers included, without which a file's state of a parameter is incomplete. A
/// momentum that was switched on later may be missing.
TORCHAMP_API std::vector<std::string> required_states(StepAlgorithm algorithm);

}  // namespace torchamp::optim

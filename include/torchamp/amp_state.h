// Amp: the state that one call of initialize makes, shared by the handles that it returns.
#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/loss_scaler.h>
#include <torchamp/opt_level.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

namespace torch {
namespace nn {
class Module;
}
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace torchamp {

class Session;

/// @addtogroup choose
/// @{

/// `{adam, sgd}`: optimizers that the program owns.
using OptimizerRefs = std::vector<std::reference_wrapper<torch::optim::Optimizer>>;

/// The loss scales, masters and casts of the models and optimizers given to one initialize.
/// Independent of any other.
class TORCHAMP_API Amp {
 public:
  /// Called by initialize, not by programs. Checks everything first, then casts the models and
  /// gives the optimizers their masters.
  Amp(std::vector<std::shared_ptr<torch::nn::Module>> models, const OptimizerRefs& optimizers,
      const Options& options);
  ~Amp();
  Amp(const Amp&) = delete;
  Amp& operator=(const Amp&) = delete;

  /// The options that initialize was given.
  const Options& options() const;
  /// The level's properties with the options applied.
  const Properties& properties() const;
  /// False: models and optimizers are unchanged, and nothing here has an effect.
  bool enabled() const;

  /// The scaler of one of num_losses losses. Throws IndexError for another id.
  LossScaler& loss_scaler(int64_t loss_id = 0) const;
  /// One per loss; empty if not enabled.
  std::vector<LossScaler>& loss_scalers() const;
  /// Ends O1's autocast in the thread that called initialize. Nothing else needs closing.
  void close() const;

  /// @cond
  at::Tensor value(const at::Tensor& tensor) const;  // float32_value()
  Session& session() const { return *session_; }
  /// @endcond

 private:
  std::unique_ptr<Session> session_;
};

/// One line: the properties, the models' classes, the current loss scales. Waits for the device,
/// but not while a graph is captured: then the scales are left out.
TORCHAMP_API std::ostream& operator<<(std::ostream& stream, const Amp& amp);

/// @}

}  // namespace torchamp

// Session: the state of one initialize, behind Amp.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/amp_state.h>
#include <torchamp/optimizer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "autocast/open_autocast.h"
#include "core/loan.h"
#include "float8/weights.h"
#include "frontend/wrapped_optimizer.h"

namespace torchamp {

/// What casts the ops of the models of one initialize, in the thread that called it, until close().
struct Casts {
  std::optional<OpenAutocast> autocast;  ///< O1's and O4's
  float8::Weights::Open float8;          ///< products of linears; null: none are in it

  void close() {
    autocast.reset();
    float8.reset();
  }
  /// Before a step, a capture or a replay: weights are cast to float8 again.
  void forget_copies() const {
    if (float8) float8->forget_copies();
  }
};

/// What is logged of one initialize, unless its verbosity is 0.
class Notices {
 public:
  explicit Notices(int verbosity) : is_quiet_(verbosity <= 0) {}
  /// Logs a text that is not empty.
  void tell(const std::string& text) const;
  /// Logs a warning, unless it was logged before. May be called from any thread.
  void warn_once(const std::string& text);

 private:
  const bool is_quiet_;
  std::mutex mutex_;
  std::unordered_set<std::string> warned_;
};

/// The scalers, masters and casts of the models and optimizers given to one initialize. Independent
/// of any other.
class Session {
 public:
  /// Checks everything first, then casts the models and gives the optimizers their masters.
  Session(std::vector<std::shared_ptr<torch::nn::Module>> models, const OptimizerRefs& optimizers,
          const Options& options);

  /// The options that initialize was given.
  const Options& options() const { return options_; }
  /// The level's properties with the options applied.
  const Properties& properties() const { return properties_; }
  /// False: models and optimizers are unchanged, and nothing here has an effect.
  bool enabled() const { return options_.enabled(); }

  /// The dtype that forward casts its inputs to; empty if the level does not cast them.
  std::optional<at::ScalarType> input_type() const;
  /// The dtype that forward casts its outputs to; empty if the level does not cast them.
  std::optional<at::ScalarType> output_type() const;
  /// What casts ops; empty where the level casts none, and after close().
  Casts& casts() { return casts_; }
  const Casts& casts() const { return casts_; }
  Notices& notices() { return notices_; }

  /// In the order in which initialize was given them.
  std::vector<WrappedOptimizer>& optimizers() { return optimizers_; }
  /// One of them, stepping what its groups hold now, with masters for what is new. Throws
  /// RuntimeError if it is known to be moved or destroyed, and ValueError for a parameter whose
  /// master another one steps.
  WrappedOptimizer& optimizer(size_t index);
  /// One of them as it is, also after release(). Throws RuntimeError if it is known to be moved or
  /// destroyed.
  WrappedOptimizer& living_optimizer(size_t index);
  /// The scaler of one of num_losses losses. Throws IndexError for another id.
  LossScaler& loss_scaler(int64_t loss_id = 0);
  /// One per loss; empty if not enabled.
  std::vector<LossScaler>& loss_scalers() { return loss_scalers_; }
  /// The scalers, to read.
  const std::vector<LossScaler>& loss_scalers() const { return loss_scalers_; }
  /// In the order in which initialize was given them.
  const std::vector<std::shared_ptr<torch::nn::Module>>& models() const { return models_; }
  /// A parameter's name, with the model's number if there are several; empty if no model has it.
  std::string name_of(const at::Tensor& param) const;

  /// Synchronizes model parameters and masters if one was written from outside; before they are
  /// saved.
  void refresh();
  /// Copies masters that were written from outside to the model; before a forward, which takes
  /// nothing over, so that weights may be swapped and swapped back.
  void publish();
  /// Whether the program has called a model.
  std::atomic<bool> is_called = false;

  /// For as long as the result lives, steps, saves and loads in other threads wait.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> hold_weights() {
    return std::unique_lock(weights_);
  }

  /// Lends all masters, and gives what was cast without one float32, as long as the program holds
  /// the result. Null where they are lent, where amp is not enabled, and after release().
  std::shared_ptr<core::Loan> lend();
  /// What lend() has returned; null once the program has dropped it.
  std::shared_ptr<core::Loan> loan() const { return loan_.lock(); }
  bool is_lent() const { return !loan_.expired(); }

  /// Does what torchamp::release documents.
  void release();
  /// Whether release() was called; then models and optimizers are plain.
  bool is_released() const { return is_released_; }
  /// Throws RuntimeError if it was.
  void check_not_released() const;

 private:
  void follow_groups(WrappedOptimizer& optimizer);
  void look_at_steps();
  std::vector<WrappedOptimizer*> living_optimizers();
  void give_back();

  Options options_;
  Properties properties_;
  std::vector<std::shared_ptr<torch::nn::Module>> models_;
  std::shared_ptr<core::Masters> masters_ =
      std::make_shared<core::Masters>(properties_.master_weights.value_or(false));
  std::vector<WrappedOptimizer> optimizers_;
  std::vector<LossScaler> loss_scalers_;
  bool is_released_ = false;
  std::weak_ptr<core::Loan> loan_;
  std::recursive_mutex weights_;
  Notices notices_;
  Casts casts_;
};

/// A scope, around a step, in which lend() lends nothing.
class PausedLoan {
 public:
  explicit PausedLoan(Session& session);
  ~PausedLoan();
  PausedLoan(const PausedLoan&) = delete;
  PausedLoan& operator=(const PausedLoan&) = delete;

 private:
  std::shared_ptr<core::Loan> loan_;
};

/// What the level cast of the models and gave no master, each once.
std::vector<at::Tensor> cast_without_master(const Session& session);

/// Sets a model's parameter or buffer, and its master if it has one.
void set_value(const at::Tensor& tensor, const at::Tensor& value);
/// Records that a model's parameter agrees with its master, if it has one.
void mark_synced(const at::Tensor& tensor);

/// The models' parameters are to be initialized again.
void forget_rounded(const std::vector<std::shared_ptr<torch::nn::Module>>& models);

/// A session's entry for an optimizer.
inline WrappedOptimizer& wrapped_of(const Optimizer& optimizer) {
  return optimizer.amp()->session().optimizer(optimizer.index());
}

}  // namespace torchamp

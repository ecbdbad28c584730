// report(): the memory that training keeps, and in which dtypes, module by module.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/detail/export.h>
#include <torchamp/initialize.h>
#include <torchamp/opt_level.h>
#include <torchamp/optimizer.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace torchamp {
/// @addtogroup step
/// @{

/// The memory that training keeps besides activations, in bytes.
struct Bytes {
  int64_t weights = 0;  ///< with buffers
  int64_t grads = 0;    ///< of parameters, float32 or as autograd makes them
  int64_t masters = 0;  ///< those that are not the model's parameters themselves
  int64_t state = 0;    ///< the optimizer's, as it is now: none before the first step

  /// All of it.
  int64_t total() const { return weights + grads + masters + state; }
  /// Adds each.
  TORCHAMP_API Bytes& operator+=(const Bytes& other);
};

/// One module: its own tensors, without those of the modules in it.
struct ModuleRow {
  std::string name;                          ///< as in named_modules(); "" is the model
  std::string type;                          ///< its class
  std::vector<at::ScalarType> weight_types;  ///< of parameters and buffers, each dtype once
  Bytes bytes;                               ///< of them
};

/// The ops of a forward in one RECORD_USER_SCOPE; "" is outside of all.
struct ScopeRow {
  std::string scope;                      ///< its name
  std::map<at::ScalarType, int64_t> ops;  ///< how many, by the dtype of their floating results
  int64_t casts_down = 0;                 ///< of floating tensors to dtypes of fewer bits
  int64_t casts_up = 0;                   ///< to dtypes of more bits
};

/// The result of report().
struct MemoryReport {
  Properties properties;        ///< of the model's initialize
  std::vector<ModuleRow> rows;  ///< in the order of named_modules()
  Bytes bytes;                  ///< the sums of the rows
  int64_t float32_total = 0;    ///< of the same training in float32, without activations
  /// The forward's scopes, in the order of their first ops; empty if no forward was given.
  std::vector<ScopeRow> scopes;
  /// Bytes that the forward has allocated in its thread on the model's device, and not freed.
  std::optional<int64_t> activations;
};

/// The dtypes of each module's tensors, and the bytes of weights, grads, masters and the state of
/// the optimizer. `module` is one that initialize cast. `forward` calls the model and returns its
/// output or a loss; the report then has its ops. Without it nothing is run. Grads are counted as
/// after a backward. Throws RuntimeError for an optimizer of which torchamp does not know the
/// state, and during an OverflowTrace, and what `forward` throws.
TORCHAMP_API MemoryReport report(const torch::nn::Module& module, const Optimizer& optimizer,
                                 const std::function<at::Tensor()>& forward = nullptr);

/// Reports on a model: `report(model, optimizer, [&] { return loss_of(model(x)); })`.
template <class M>
MemoryReport report(const Model<M>& model, const Optimizer& optimizer,
                    const std::function<at::Tensor()>& forward = nullptr) {
  return report(*detail::module_of(model.module()), optimizer, forward);
}

/// A table with a row for each module, and the sums; then one with a row for each scope.
TORCHAMP_API std::ostream& operator<<(std::ostream& stream, const MemoryReport& report);

/// @}

}  // namespace torchamp

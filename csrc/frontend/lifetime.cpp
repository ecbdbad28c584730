#include "frontend/lifetime.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torchamp/optim/fused_optimizer.h>

#include <typeinfo>

namespace torchamp {
namespace {

using Defaults = std::unique_ptr<torch::optim::OptimizerOptions>;

/// Reaches an optimizer's default options, which it owns and nobody replaces.
struct OfOptimizer : torch::optim::Optimizer {
  static Defaults& defaults_of(torch::optim::Optimizer& optimizer) {
    return optimizer.*(&OfOptimizer::defaults_);
  }
};

struct Life {
  std::shared_ptr<const void> token = std::make_shared<char>();
};

template <class Options>
struct WithLife : Options, Life {
  explicit WithLife(const Options& options) : Options(options) {}
};

template <class Options>
bool give_life(Defaults& defaults) {
  const torch::optim::OptimizerOptions& given = *defaults;
  if (typeid(given) != typeid(Options)) return false;
  defaults = std::make_unique<WithLife<Options>>(static_cast<const Options&>(given));
  return true;
}

template <class... Options>
void give_life_to_one_of(Defaults& defaults) {
  static_cast<void>((give_life<Options>(defaults) || ...));
}

}  // namespace

std::weak_ptr<const void> lifetime_of(torch::optim::Optimizer& optimizer) {
  static const auto& endless = *new Life;
  if (const auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer))
    return fused->steppers();
  Defaults& defaults = OfOptimizer::defaults_of(optimizer);
  if (defaults == nullptr) return endless.token;
  namespace libtorch = torch::optim;
  give_life_to_one_of<libtorch::SGDOptions, libtorch::AdamOptions, libtorch::AdamWOptions,
                      libtorch::AdagradOptions, libtorch::RMSpropOptions, libtorch::LBFGSOptions>(
      defaults);
  const auto* life = dynamic_cast<const Life*>(defaults.get());
  return life == nullptr ? endless.token : life->token;
}

bool was_moved_from(torch::optim::Optimizer& optimizer) {
  return OfOptimizer::defaults_of(optimizer) == nullptr;
}

}  // namespace torchamp

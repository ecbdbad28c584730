// What the algorithms of fused_step keep and need, by their rules in math/optim.
#pragma once

#include <torchamp/fused_step.h>

#include <string>
#include <vector>

#include "math/optim/step.h"

namespace torchamp {

struct StepRule {
  int64_t states;           ///< how many a step takes for each parameter
  const char* state_names;  ///< of those kept from step to step, separated by spaces
  bool averages;            ///< whether it keeps a running norm of each tensor's grads
  bool adapts;              ///< whether it needs the norms of parameters and updates
};

inline StepRule rule_of(StepAlgorithm algorithm) {
  switch (static_cast<Algorithm>(algorithm)) {
#define TORCHAMP_CASE(Name, name) \
  case Algorithm::k##Name:        \
    return {Name::kStates, Name::kStateNames, Name::kAverages, !Name::kCounts};
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
  return {};
}

/// The names of the states that the algorithm keeps per parameter, in its order.
TORCHAMP_API std::vector<std::string> state_names(StepAlgorithm algorithm);

}  // namespace torchamp

// One step of dynamic loss scaling: grow after `growth_interval` clean backwards, back off on
// overflow.
//
// The rule is that of apex.amp with Megatron's hysteresis: up to `hysteresis` overflows in a row of
// unlucky backwards are forgiven before the scale goes down; a clean backward refills the budget.
#pragma once

#include "math/float16.h"

namespace torchamp {

struct ScaleRule {
  float growth_factor;
  float backoff_factor;
  int32 growth_interval;
  float min_scale;
  float max_scale;
  int32 hysteresis;
};

struct ScaleState {
  float loss_scale;
  int32 growth_tracker;
  int32 hysteresis_tracker;
};

TORCHAMP_MATH ScaleState backed_off(ScaleState state, const ScaleRule& rule) {
  state.growth_tracker = 0;
  state.hysteresis_tracker -= 1;
  if (state.hysteresis_tracker > 0) return state;
  const float smaller = state.loss_scale * rule.backoff_factor;
  state.loss_scale = smaller < rule.min_scale ? rule.min_scale : smaller;
  return state;
}

TORCHAMP_MATH ScaleState grown(ScaleState state, const ScaleRule& rule) {
  state.hysteresis_tracker = rule.hysteresis;
  state.growth_tracker += 1;
  if (state.growth_tracker < rule.growth_interval) return state;
  state.growth_tracker = 0;
  const float larger = state.loss_scale * rule.growth_factor;
  state.loss_scale = larger > rule.max_scale ? rule.max_scale : larger;
  return state;
}

TORCHAMP_MATH ScaleState updated(ScaleState state, bool found_inf, const ScaleRule& rule) {
  return found_inf ? backed_off(state, rule) : grown(state, rule);
}

}  // namespace torchamp

// One update of a dynamic loss scale: it grows after `growth_interval` clean backwards and backs
// off on overflow.
//
// The rule is apex.amp's, and one addition: an overflow at a min_scale of 1 or less is a collapse,
// from which the scale recovers by growing with every clean backward until the
// kRecoveryOverflows-th overflow. The growth tracker counts those that are left, as a negative
// number.
#pragma once

#include "math/float16.h"

namespace torchamp {

/// So that a few non-finite losses while it recovers do not leave the scale far too low.
constexpr int32 kRecoveryOverflows = 3;
/// Scales below this do not keep grads from vanishing.
constexpr float kUseful = 1.0f;

/// A dynamic loss scale on the device, and how it is updated.
struct ScaleUpdate {
  struct Rule {
    float growth_factor;
    float backoff_factor;
    int32 growth_interval;
    float min_scale;
    float max_scale;
  };

  struct State {
    float loss_scale;
    int32 growth_tracker;
  };

  float* loss_scale = nullptr;
  int32* growth_tracker = nullptr;
  Rule rule = {};
};

TORCHAMP_MATH ScaleUpdate::State backed_off(ScaleUpdate::State state,
                                            const ScaleUpdate::Rule& rule) {
  state.growth_tracker = state.growth_tracker < 0 ? state.growth_tracker + 1 : 0;
  state.loss_scale *= rule.backoff_factor;
  if (state.loss_scale >= rule.min_scale) return state;
  state.loss_scale = rule.min_scale;
  if (rule.min_scale <= kUseful) state.growth_tracker = -kRecoveryOverflows;
  return state;
}

TORCHAMP_MATH ScaleUpdate::State grown(ScaleUpdate::State state, const ScaleUpdate::Rule& rule) {
  const bool recovers = state.growth_tracker < 0;
  if (!recovers) state.growth_tracker += 1;
  if (!recovers && state.growth_tracker < rule.growth_interval) return state;
  const float larger = state.loss_scale * rule.growth_factor;
  state.loss_scale = larger > rule.max_scale ? rule.max_scale : larger;
  if (!recovers || state.loss_scale == rule.max_scale) state.growth_tracker = 0;
  return state;
}

TORCHAMP_MATH ScaleUpdate::State updated(ScaleUpdate::State state, bool found_inf,
                                         const ScaleUpdate::Rule& rule) {
  if (state.loss_scale > rule.max_scale) state.loss_scale = rule.max_scale;
  return found_inf ? backed_off(state, rule) : grown(state, rule);
}

/// Returns the loss scale afterwards.
TORCHAMP_MATH float update(const ScaleUpdate& scale, bool found_inf) {
  const ScaleUpdate::State before{*scale.loss_scale, *scale.growth_tracker};
  const ScaleUpdate::State after = updated(before, found_inf, scale.rule);
  *scale.loss_scale = after.loss_scale;
  *scale.growth_tracker = after.growth_tracker;
  return after.loss_scale;
}

}  // namespace torchamp

// The arguments of each op's kernel, besides its tensors: `kLists` lists of them, cut into units of
// `kUnit` elements.
#pragma once

#include "math/optim/step.h"
#include "math/types.h"
#include "math/unscale.h"
#include "math/update_scale.h"
#include "math/verdict.h"

namespace torchamp::cuda {

/// A warp's work: long enough to hide the search for its tensor, short enough that small models
/// fill the card.
constexpr int kWarpUnit = 2048;
/// A block's work where each unit leaves a partial sum to be added up afterwards.
constexpr int kBlockUnit = 32768;

struct ScaleArguments {
  static constexpr int kLists = 2;  ///< input, output
  static constexpr int kUnit = kWarpUnit;
  float scale;
  Flags flags;
};

struct UnscaleArguments {
  static constexpr int kLists = 2;  ///< scaled_grads, master_grads, whose addresses may be null
  static constexpr int kUnit = kWarpUnit;
  InvScale inv_scale;
  bool accumulate;
  Flags flags;
  Ending ending;              ///< ticket: null but in the last launch
  float* partials = nullptr;  ///< a sum of squares each block, where ending.norm is wanted
  uint32 first_block = 0;     ///< blocks of the launches before
};

struct AxpbyArguments {
  static constexpr int kLists = 3;  ///< x, y, out
  static constexpr int kUnit = kWarpUnit;
  float a;
  float b;
  bool check_x;
  bool check_y;
  Flags flags;
};

struct CheckArguments {
  static constexpr int kLists = 1;
  static constexpr int kUnit = kWarpUnit;
  Flags flags;
};

struct CopyCastArguments {
  static constexpr int kLists = 2;  ///< source, destination
  static constexpr int kUnit = kWarpUnit;
};

/// Unit u leaves its sum of squares in partials[u].
struct L2normArguments {
  static constexpr int kLists = 1;
  static constexpr int kUnit = kBlockUnit;
  float* partials;
  float* per_tensor;
  Flags flags;
};

struct L2normTotalArguments {
  const float* partials;
  int64 count;
  float* norm;
};

/// lists: grads, params, states …, model_params, whose addresses may be null
template <class Rule>
struct StepArguments {
  static constexpr int kLists = 3 + Rule::kStates;
  static constexpr int kUnit = kWarpUnit;
  StepInputs inputs;
  uint32* ticket;
};

struct UpdateScaleArguments {
  MovingScale scale;
  const float* found_inf;
};

}  // namespace torchamp::cuda

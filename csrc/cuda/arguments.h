// Every kernel, once: its arguments, in addition to `kLists` lists of tensors, and its line in the
// list that the host's list and the kernel program are both made from.
#pragma once

#include "math/finalize.h"
#include "math/float8.h"
#include "math/optim/step.h"
#include "math/types.h"
#include "math/unscale.h"
#include "math/update_scale.h"

namespace torchamp::cuda {

/// Elements of a warp's unit. Small ones let small models fill the card; large ones spread a unit's
/// fixed costs, the search for its tensor and the report at its end, over more elements.
constexpr int kWarpUnit = 2048, kLargeWarpUnit = 8192;
/// Elements of a block's unit, where each unit leaves a partial sum to be added up afterwards.
constexpr int kBlockUnit = 32768;

/// The finalization of passes over a backward's grads, done by the last launch.
struct Pass {
  Flags flags;
  Finalization end;           ///< ticket: null except in the last launch
  float* partials = nullptr;  ///< a sum of squares per block, if end.norm is set
  uint32 first_block = 0;     ///< blocks of the previous launches
};

struct CheckArguments {
  static constexpr int kLists = 1;
  Pass pass;
};

struct UnscaleArguments {
  static constexpr int kLists = 2;  ///< scaled_grads, master_grads, whose addresses may be null
  Pass pass;
  InvScale inv_scale;
  bool accumulate;
};

struct AxpbyArguments {
  static constexpr int kLists = 3;  ///< x, y, out
  float a;
  float b;
  bool check_x;
  bool check_y;
  Flags flags;
};

struct CopyCastArguments {
  static constexpr int kLists = 2;  ///< source, destination
};

/// The largest magnitudes of `count` positions and their scales, which the last block writes.
struct Float8ScalesArguments {
  static constexpr int kLists = 1;
  uint32* magnitudes;
  float* scales;
  uint32* ticket;  ///< null except in the last launch
  int32 count;
  Float8 format;
};

/// Units are tiles, of one block each.
struct Float8CastArguments {
  using Row = Matrix;
  static constexpr int kLists = 3;  ///< matrices, plain, transposed: addresses of both may be null
  const float* scales;
  Float8 format;
};

/// Unit u leaves its sum of squares in partials[u].
struct L2normArguments {
  static constexpr int kLists = 1;
  float* partials;
  float* per_tensor;
  Flags flags;
  const float* skip;  ///< may be null
};

struct L2normTotalArguments {
  const float* partials;
  int64 count;
  float* norm;
};

/// lists: grads, params, states …, model_params, whose addresses may be null. Rows are the groups'
/// hyperparameters.
template <class Rule>
struct StepArguments {
  using Row = HyperRow;
  static constexpr int kLists = 3 + Rule::kStates;
  StepInputs inputs;
  uint32* ticket;
};

struct UpdateScaleArguments {
  ScaleUpdate scale;
  const float* found_inf;
};

}  // namespace torchamp::cuda

/// An algorithm's function, and its variant for lists that are rounded stochastically.
#define TORCHAMP_STEP_KERNELS(BY_TABLE, Name, name)      \
  BY_TABLE(Step##Name, step_##name, StepArguments<Name>) \
  BY_TABLE(Step##Name##Compact, step_##name##_compact, StepArguments<Name>)

/// Every function of the device. BY_TABLE(Name, name, Arguments): it runs in every iteration, and
/// has a kernel for each place of its table. ONE(Name, name, Parameter): it has one kernel.
#define TORCHAMP_KERNELS(BY_TABLE, ONE)                         \
  BY_TABLE(Check, check, CheckArguments)                        \
  BY_TABLE(Unscale, unscale, UnscaleArguments)                  \
  BY_TABLE(L2norm, l2norm, L2normArguments)                     \
  BY_TABLE(L2normPerTensor, l2norm_per_tensor, L2normArguments) \
  TORCHAMP_ALGORITHMS_AS(TORCHAMP_STEP_KERNELS, BY_TABLE)       \
  BY_TABLE(Float8Scales, float8_scales, Float8ScalesArguments)  \
  BY_TABLE(Float8Cast, float8_cast, Float8CastArguments)        \
  ONE(Axpby, axpby, Launch<AxpbyArguments>)                     \
  ONE(CopyCast, copy_cast, Launch<CopyCastArguments>)           \
  ONE(L2normTotal, l2norm_total, L2normTotalArguments)          \
  ONE(Clip, clip, Clipping)                                     \
  ONE(Finalize, finalize, Finalization)                         \
  ONE(UpdateScale, update_scale, UpdateScaleArguments)

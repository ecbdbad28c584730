// Settings that are chosen by measurements on a GPU.
#pragma once

#include "math/types.h"

namespace torchamp::cuda {

/// How work is cut and launched. Results are the same, except the last bits of norms.
struct Tuning {
  int32 unit = 0;              ///< elements of a warp's unit; 0: more in larger plans
  int32 pass_threads = 256;    ///< a block's, in passes over grads
  int32 step_threads = 128;    ///< a block's, in an optimizer's step
  int32 small_parameters = 1;  ///< small tables are passed in small parameters
  int32 resident_tables = 1;   ///< long tables are kept on the device
  int32 walks_backwards = 1;   ///< a step begins with what the previous pass read last
  int32 mixed_vectors = 1;     ///< vectors where grads are misaligned to the rest
};

/// One of the fields: DO(name, values that a measurement compares).
#define TORCHAMP_TUNING_FIELDS(DO) \
  DO(unit, 0, 2048, 8192)          \
  DO(pass_threads, 128, 256, 512)  \
  DO(step_threads, 128, 256)       \
  DO(small_parameters, 0, 1)       \
  DO(resident_tables, 0, 1)        \
  DO(walks_backwards, 0, 1)        \
  DO(mixed_vectors, 0, 1)

/// The process's. Not to be changed while other threads launch.
Tuning& tuning();

}  // namespace torchamp::cuda

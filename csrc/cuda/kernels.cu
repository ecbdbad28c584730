// The kernel program: compiled by nvcc into a fatbin if available, or by NVRTC when it is used.
// Nothing of torch, of CUDA's headers or of the standard library is included. TORCHAMP_ONLY defines
// a subset of the kernels: compiling all with NVRTC takes seconds.
#include "cuda/arguments.h"
#include "cuda/check.cuh"
#include "cuda/clip.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/finalize.cuh"
#include "cuda/float8.cuh"
#include "cuda/l2norm.cuh"
#include "cuda/step.cuh"
#include "cuda/unscale.cuh"
#include "cuda/update_scale.cuh"

namespace torchamp::cuda {

#define TORCHAMP_DEFINE_STEP(Name, name)                             \
  template <class Launch>                                            \
  TORCHAMP_DEVICE void step_##name(const Launch& launch) {           \
    step<Name, /*kCompact=*/false>(launch);                          \
  }                                                                  \
  template <class Launch>                                            \
  TORCHAMP_DEVICE void step_##name##_compact(const Launch& launch) { \
    step<Name, /*kCompact=*/true>(launch);                           \
  }

TORCHAMP_ALGORITHMS(TORCHAMP_DEFINE_STEP)

#undef TORCHAMP_DEFINE_STEP

#define TORCHAMP_DEFINE(kernel, function, Parameter)           \
  extern "C" __global__ void __launch_bounds__(kMaxThreads, 1) \
      kernel(const Parameter __grid_constant__ parameter) {    \
    function(parameter);                                       \
  }
#define TORCHAMP_BY_TABLE(Name, name, Arguments)                         \
  TORCHAMP_DEFINE(torchamp_##name, name, Launch<Arguments>)              \
  TORCHAMP_DEFINE(torchamp_##name##_small, name, SmallLaunch<Arguments>) \
  TORCHAMP_DEFINE(torchamp_##name##_resident, name, ResidentLaunch<Arguments>)
#define TORCHAMP_ONE(Name, name, Parameter) TORCHAMP_DEFINE(torchamp_##name, name, Parameter)

#if defined(TORCHAMP_ONLY)
TORCHAMP_ONLY
#else
TORCHAMP_KERNELS(TORCHAMP_BY_TABLE, TORCHAMP_ONE)
#endif

#undef TORCHAMP_DEFINE
#undef TORCHAMP_BY_TABLE
#undef TORCHAMP_ONE

}  // namespace torchamp::cuda

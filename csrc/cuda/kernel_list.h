// Every kernel, once: the host's list of them and the kernel program are both made from these.
#pragma once

/// Kernels over a table of tensors, whose parameter is Launch<Arguments>: DO(Name, name,
/// Arguments).
#define TORCHAMP_TABLE_KERNELS(DO)           \
  DO(Scale, scale, ScaleArguments)           \
  DO(Unscale, unscale, UnscaleArguments)     \
  DO(Axpby, axpby, AxpbyArguments)           \
  DO(Check, check, CheckArguments)           \
  DO(CopyCast, copy_cast, CopyCastArguments) \
  DO(L2norm, l2norm, L2normArguments)        \
  DO(L2normPerTensor, l2norm_per_tensor, L2normArguments)

/// Kernels whose parameter is Arguments itself: DO(Name, name, Arguments).
#define TORCHAMP_PLAIN_KERNELS(DO)                    \
  DO(L2normTotal, l2norm_total, L2normTotalArguments) \
  DO(UpdateScale, update_scale, UpdateScaleArguments)

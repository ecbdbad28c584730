// Every kernel, once: the host's list of them and the kernel program are both made from these.
#pragma once

/// The kernels of a function that every iteration runs: its table is in a large or a small
/// parameter, or on the device.
#define TORCHAMP_ITERATION_KERNELS(DO, Name, name, Arguments) \
  DO(Name, name, name, Launch<Arguments>)                     \
  DO(Name##Small, name##_small, name, SmallLaunch<Arguments>) \
  DO(Name##Resident, name##_resident, name, ResidentLaunch<Arguments>)

/// An algorithm's kernel, and its variant for lists that are rounded stochastically.
#define TORCHAMP_STEP_KERNELS(DO, Name, name)                                  \
  TORCHAMP_ITERATION_KERNELS(DO, Step##Name, step_##name, StepArguments<Name>) \
  DO(Step##Name##Compact, step_##name##_compact, step_##name##_compact, Launch<StepArguments<Name>>)

/// DO(Name, name, function, Parameter): the kernel torchamp_<name> calls function(parameter).
#define TORCHAMP_KERNELS(DO)                                                         \
  TORCHAMP_ITERATION_KERNELS(DO, Check, check, CheckArguments)                       \
  TORCHAMP_STEP_KERNELS(DO, Adam, adam)                                              \
  TORCHAMP_STEP_KERNELS(DO, AmsGrad, ams_grad)                                       \
  TORCHAMP_STEP_KERNELS(DO, Sgd, sgd)                                                \
  TORCHAMP_STEP_KERNELS(DO, Momentum, momentum)                                      \
  TORCHAMP_STEP_KERNELS(DO, Adagrad, adagrad)                                        \
  TORCHAMP_STEP_KERNELS(DO, NovoGrad, novo_grad)                                     \
  TORCHAMP_STEP_KERNELS(DO, LambUpdate, lamb_update)                                 \
  TORCHAMP_STEP_KERNELS(DO, LambApply, lamb_apply)                                   \
  DO(Unscale, unscale, unscale, Launch<UnscaleArguments>)                            \
  DO(Scale, scale, scale, Launch<ScaleArguments>)                                    \
  DO(Axpby, axpby, axpby, Launch<AxpbyArguments>)                                    \
  DO(CopyCast, copy_cast, copy_cast, Launch<CopyCastArguments>)                      \
  DO(L2norm, l2norm, l2norm, Launch<L2normArguments>)                                \
  DO(L2normPerTensor, l2norm_per_tensor, l2norm_per_tensor, Launch<L2normArguments>) \
  DO(L2normTotal, l2norm_total, l2norm_total, L2normTotalArguments)                  \
  DO(Clip, clip, clip, Clipping)                                                     \
  DO(Finalize, finalize, finalize, Finalization)                                     \
  DO(UpdateScale, update_scale, update_scale, UpdateScaleArguments)

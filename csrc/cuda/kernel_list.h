// Every kernel, once: the host's list of them and the kernel program are both made from these.
#pragma once

/// The kernels of a function that every iteration runs: its table travels in a large parameter or
/// in a small one, or lies on the device.
#define TORCHAMP_ITERATION_KERNELS(DO, Name, name, Arguments) \
  DO(Name, name, name, Launch<Arguments>)                     \
  DO(Name##Small, name##_small, name, SmallLaunch<Arguments>) \
  DO(Name##Resident, name##_resident, name, ResidentLaunch<Arguments>)

/// DO(Name, name, function, Parameter): the kernel torchamp_<name> calls function(parameter).
#define TORCHAMP_KERNELS(DO)                                                                  \
  TORCHAMP_ITERATION_KERNELS(DO, Unscale, unscale, UnscaleArguments)                          \
  TORCHAMP_ITERATION_KERNELS(DO, StepAdam, step_adam, StepArguments<Adam>)                    \
  TORCHAMP_ITERATION_KERNELS(DO, StepAmsGrad, step_ams_grad, StepArguments<AmsGrad>)          \
  TORCHAMP_ITERATION_KERNELS(DO, StepSgd, step_sgd, StepArguments<Sgd>)                       \
  TORCHAMP_ITERATION_KERNELS(DO, StepMomentum, step_momentum, StepArguments<Momentum>)        \
  TORCHAMP_ITERATION_KERNELS(DO, StepAdagrad, step_adagrad, StepArguments<Adagrad>)           \
  TORCHAMP_ITERATION_KERNELS(DO, StepNovoGrad, step_novo_grad, StepArguments<NovoGrad>)       \
  TORCHAMP_ITERATION_KERNELS(DO, StepLambUpdate, step_lamb_update, StepArguments<LambUpdate>) \
  TORCHAMP_ITERATION_KERNELS(DO, StepLambApply, step_lamb_apply, StepArguments<LambApply>)    \
  DO(Check, check, check, Launch<CheckArguments>)                                             \
  DO(Scale, scale, scale, Launch<ScaleArguments>)                                             \
  DO(Axpby, axpby, axpby, Launch<AxpbyArguments>)                                             \
  DO(CopyCast, copy_cast, copy_cast, Launch<CopyCastArguments>)                               \
  DO(L2norm, l2norm, l2norm, Launch<L2normArguments>)                                         \
  DO(L2normPerTensor, l2norm_per_tensor, l2norm_per_tensor, Launch<L2normArguments>)          \
  DO(L2normTotal, l2norm_total, l2norm_total, L2normTotalArguments)                           \
  DO(Clip, clip, clip, Clipping)                                                              \
  DO(Conclude, conclude, conclude, Verdict)                                                   \
  DO(UpdateScale, update_scale, update_scale, UpdateScaleArguments)

// Every kernel, once: the host's list of them and the kernel program are both made from these.
#pragma once

/// Kernels over a table of tensors, whose parameter is Launch<Arguments>: DO(Name, name,
/// Arguments).
#define TORCHAMP_TABLE_KERNELS(DO)                                \
  DO(Scale, scale, ScaleArguments)                                \
  DO(Unscale, unscale, UnscaleArguments)                          \
  DO(Axpby, axpby, AxpbyArguments)                                \
  DO(Check, check, CheckArguments)                                \
  DO(CopyCast, copy_cast, CopyCastArguments)                      \
  DO(L2norm, l2norm, L2normArguments)                             \
  DO(L2normPerTensor, l2norm_per_tensor, L2normArguments)         \
  DO(StepAdam, step_adam, StepArguments<Adam>)                    \
  DO(StepAmsGrad, step_ams_grad, StepArguments<AmsGrad>)          \
  DO(StepSgd, step_sgd, StepArguments<Sgd>)                       \
  DO(StepMomentum, step_momentum, StepArguments<Momentum>)        \
  DO(StepAdagrad, step_adagrad, StepArguments<Adagrad>)           \
  DO(StepNovoGrad, step_novo_grad, StepArguments<NovoGrad>)       \
  DO(StepLambUpdate, step_lamb_update, StepArguments<LambUpdate>) \
  DO(StepLambApply, step_lamb_apply, StepArguments<LambApply>)

/// Kernels whose parameter is Arguments itself: DO(Name, name, Arguments).
#define TORCHAMP_PLAIN_KERNELS(DO)                    \
  DO(Clip, clip, Clipping)                            \
  DO(Conclude, conclude, Verdict)                     \
  DO(L2normTotal, l2norm_total, L2normTotalArguments) \
  DO(UpdateScale, update_scale, UpdateScaleArguments)

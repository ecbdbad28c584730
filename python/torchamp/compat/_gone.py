"""What apex has and its replacement has not, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

Getattr = Callable[[str], NoReturn]

_ADAGRAD = "torch.optim.Adagrad"
_ADAM = "apex.optimizers.FusedAdam"
_LAMB = "apex.optimizers.FusedLAMB with amp.initialize at O2 or O5"
_NORMS = "apex.normalization.fused_layer_norm"
_SCALE_LOSS = "apex.amp.scale_loss after apex.amp.initialize"

#: By apex's name.
INSTEAD = {
    "amp_C.multi_tensor_adagrad": _ADAGRAD,
    "amp_C.multi_tensor_adam": _ADAM,
    "amp_C.multi_tensor_adam_capturable": _ADAM,
    "amp_C.multi_tensor_adam_capturable_master": f"{_ADAM} with amp.initialize at O2 or O5",
    "amp_C.multi_tensor_l2norm_mp": "amp_C.multi_tensor_l2norm",
    "amp_C.multi_tensor_l2norm_scale": "amp_C.multi_tensor_l2norm and amp_C.multi_tensor_scale",
    "amp_C.multi_tensor_lamb": "apex.optimizers.FusedLAMB",
    "amp_C.multi_tensor_lamb_mp": _LAMB,
    "amp_C.multi_tensor_lamb_stage1_cuda": "apex.optimizers.FusedLAMB",
    "amp_C.multi_tensor_lamb_stage2_cuda": "apex.optimizers.FusedLAMB",
    "amp_C.multi_tensor_novograd": "apex.optimizers.FusedNovoGrad",
    "amp_C.multi_tensor_sgd": "apex.optimizers.FusedSGD",
    "amp_C.multi_tensor_unscale_l2norm": "amp_C.multi_tensor_l2norm and amp_C.multi_tensor_scale",
    "amp_C.update_scale_hysteresis": "torchamp.ops.update_scale",
    "apex.DeprecatedFeatureWarning": "builtins.FutureWarning",
    "apex.amp._amp_state.hard_override": "the arguments of apex.amp.initialize",
    "apex.amp._amp_state.max_loss_scale": "the argument of apex.amp.initialize",
    "apex.amp._amp_state.maybe_print": "logging.info",
    "apex.amp._amp_state.min_loss_scale": "the argument of apex.amp.initialize",
    "apex.amp._amp_state.verbosity": "the argument of apex.amp.initialize",
    "apex.amp._amp_state.warn_or_err": "warnings.warn",
    "apex.amp.compat": "torch.is_tensor and torch.is_floating_point",
    "apex.amp.handle.AmpHandle.scale_loss": _SCALE_LOSS,
    "apex.amp.handle.AmpHandle.wrap_optimizer": _SCALE_LOSS,
    "apex.amp.opt": _SCALE_LOSS,
    "apex.amp.utils": "torch.is_floating_point and torch.Tensor.to",
    "apex.amp.wrap": "apex.amp.half_function, float_function and promote_function",
    "apex.contrib": "torch.nn.functional.cross_entropy for xentropy, "
    "torch.nn.utils.clip_grad_norm_ for clip_grad, and apex.normalization for layer_norm",
    "apex.deprecated_warning": "warnings.warn",
    "apex.fused_dense": "torch.nn.Linear and torch.nn.GELU",
    "apex.mlp": "torch.nn.Sequential of torch.nn.Linear and torch.nn.ReLU",
    "apex.normalization.MixedFusedLayerNorm": "apex.normalization.FusedLayerNorm",
    "apex.normalization.MixedFusedRMSNorm": "apex.normalization.FusedRMSNorm",
    f"{_NORMS}.FusedLayerNormAffineFunction": f"{_NORMS}.fused_layer_norm_affine",
    f"{_NORMS}.FusedLayerNormFunction": f"{_NORMS}.fused_layer_norm",
    "apex.optimizers.FusedAdagrad": _ADAGRAD,
    "apex.optimizers.fused_adagrad": _ADAGRAD,
    "apex.optimizers.FusedMixedPrecisionLamb": _LAMB,
    "apex.optimizers.fused_mixed_precision_lamb": _LAMB,
    "apex.parallel.Reducer": "torch.distributed.all_reduce",
    "apex.parallel.multiproc": "torchrun, which is torch.distributed.run",
}


def message_of(name: str) -> str | None:
    """What to say of apex's `name`, or None of one that is not in the table."""
    instead = INSTEAD.get(name)
    return instead and f"torchamp has no {name}: use {instead}"


def attributes_of(module: str) -> Getattr:
    """The `__getattr__` of what replaces apex's `module`."""

    def get(name: str) -> NoReturn:
        message = message_of(f"{module}.{name}")
        if message is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        error: Any = AttributeError(message)
        error.name, error.obj = "", None  # else Python asks if one with a similar name was meant
        raise error

    return get

"""Models that are cast once, for inference."""

from __future__ import annotations

from typing import TypeVar

import torch

from torchamp._shards import is_dtensor
from torchamp.amp._adopt import set_state
from torchamp.amp._cast import cast_model
from torchamp.amp._checks import module_of
from torchamp.amp._model import AmpModel

Model = TypeVar("Model", bound=torch.nn.Module)


def cast_for_inference(
    model: Model,
    dtype: torch.dtype,
    keep_batchnorm_fp32: bool = True,
    cast_model_outputs: torch.dtype | None = torch.float32,
) -> Model:
    """Casts `model` once, in place, instead of at every call as autocast does, and returns it. Its
    calls then cast floating inputs, too. Load its weights first; call eval() as for any inference.
    A call that raises changes nothing.

    Args:
        model: of any floating dtype, on any device; also one that was trained at O0, O1 or O4. Of
            one that is trained at O2, O3 or O5 take a copy.deepcopy.
        dtype: of floating parameters, buffers and inputs.
        keep_batchnorm_fp32: False casts batch norms, too.
        cast_model_outputs: of floating outputs; None leaves them in `dtype`.

    Raises:
        TypeError: if it is not a model, or the dtype is not floating.
        RuntimeError: for a model in training at O2, O3 or O5.
    """
    module = module_of("cast_for_inference", model)
    _check(module, dtype)
    with torch.inference_mode(False), torch.no_grad():
        cast_model(module, dtype, keep_batchnorm_fp32)
    output_type = dtype if cast_model_outputs is None else cast_model_outputs
    set_state(module, dtype, output_type, shielded=True, session=None)
    return model


def _check(model: torch.nn.Module, dtype: torch.dtype) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"cast_for_inference: expected dtype to be floating, got {dtype!r}")
    for name, param in model.named_parameters():
        if is_dtensor(param):
            raise TypeError(
                f"cast_for_inference: expected parameter {name!r} to be a plain tensor, got a "
                "DTensor; cast before fully_shard or parallelize_module"
            )
    for name, module in model.named_modules():
        if isinstance(module, AmpModel) and _is_cast(module, module is model):
            part = f"model.{name}" if name else "model"
            raise RuntimeError(
                f"cast_for_inference: expected {part} ({type(module).__name__}) to be in float32, "
                "got one that initialize has cast for training; cast a copy.deepcopy of it"
            )


def _is_cast(module: AmpModel, is_whole: bool) -> bool:
    """Whether the module is in training in low precision, or is a part whose own forward casts."""
    state = module._torchamp
    if is_whole:
        return state.session is not None and state.input_type not in (None, torch.float32)
    return state.changes_forward

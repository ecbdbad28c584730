"""Models for inference: cast once, and averaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.optim import swa_utils

from torchamp._arguments import expect, module_of, with_hints
from torchamp._shards import is_dtensor
from torchamp.amp._casts.cast import cast_model
from torchamp.amp._casts.masters import LOW_PRECISION
from torchamp.amp._model.model import AmpModel, adopt
from torchamp.amp._model.state_dict import float32_of

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
    adopt(module, dtype, output_type, shielded=True)
    return model


def _check(model: torch.nn.Module, dtype: torch.dtype) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(
            f"cast_for_inference: expected dtype to be a floating torch.dtype, got {dtype!r}"
        )
    for name, param in model.named_parameters():
        if is_dtensor(param):
            raise TypeError(
                f"cast_for_inference: expected parameter {name!r} to be a plain tensor, got a "
                "DTensor; cast before fully_shard or parallelize_module"
            )
    for name, module in model.named_modules():
        is_whole = module is model
        if not isinstance(module, AmpModel) or (is_whole and module._torchamp.is_for_inference):
            continue
        if module._torchamp.is_cast(is_whole):
            part = f"model.{name}" if name else "model"
            raise RuntimeError(
                f"cast_for_inference: expected {part} ({type(module).__name__}) to be in float32, "
                "got one that initialize has cast for training; cast a copy.deepcopy of it"
            )


class AveragedModel(swa_utils.AveragedModel):
    """A torch.optim.swa_utils.AveragedModel: its arguments, methods and state dicts. What differs:

    * Of a model that initialize has cast, `module` is a float32 copy, whose calls cast floating
      inputs to float32. Averages are float32, of the masters where there are some, of the widened
      16-bit values elsewhere.
    * It may be made before initialize or after it.
    """

    @with_hints(
        "AveragedModel",
        {"decay": "a decay is multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)"},
        like=swa_utils.AveragedModel.__init__,
    )
    def __init__(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        model = module_of("AveragedModel", model)
        decay = args[0] if args else None
        expect(
            not isinstance(decay, float),
            "AveragedModel",
            "device",
            "a torch.device or None",
            decay,
            f"a decay is multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn({decay})",
        )
        super().__init__(model, *args, **kwargs)
        for original, copied in zip(model.modules(), self.module.modules()):
            if isinstance(original, AmpModel) and original._torchamp.input_type in LOW_PRECISION:
                cast_for_inference(copied, torch.float32, keep_batchnorm_fp32=False)

    def update_parameters(self, model: torch.nn.Module) -> None:
        """Averages the values that `model`, of initialize or not, has now; the first call copies
        them. Reads no grads, and waits for nothing that torch's does not wait for."""
        super().update_parameters(_Float32(module_of("update_parameters", model)))


class _Float32(torch.nn.Module):
    """The parameters and buffers of a model, those of low precision in float32."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._parameters_of, self._buffers_of = model.parameters, model.buffers

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return map(_widened, self._parameters_of(recurse))

    def buffers(self, recurse: bool = True) -> Iterator[torch.Tensor]:
        return map(_widened, self._buffers_of(recurse))


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return float32_of(tensor, tensor) if tensor.dtype in LOW_PRECISION else tensor

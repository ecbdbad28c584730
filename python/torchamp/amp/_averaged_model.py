"""torch's AveragedModel in float32: of what the masters hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import swa_utils

from torchamp.amp._checks import module_of
from torchamp.amp._inference import cast_for_inference
from torchamp.amp._masters import LOW_PRECISION
from torchamp.amp._model import AmpModel
from torchamp.amp._state_dicts import float32_of


class AveragedModel(swa_utils.AveragedModel):
    """A torch.optim.swa_utils.AveragedModel: its arguments, methods and state dicts. What differs:

    * Of a model that initialize has cast, `module` is a float32 copy, whose calls cast floating
      inputs to float32. Averages are float32, of the masters where there are some, of the widened
      16-bit values elsewhere.
    * It may be made before initialize or after it.
    """

    def __init__(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        model = module_of("AveragedModel", model)
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

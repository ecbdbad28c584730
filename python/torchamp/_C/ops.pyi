"""The bindings of csrc/python/ops.cpp."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from torchamp._C import StepAlgorithm

_Tensors = Sequence[torch.Tensor | None]

class _Class(type): ...

class _Object(metaclass=_Class):
    """pybind11's base class. Only classes with an __init__ of their own can be called."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

class _Enum(_Object):
    __members__: ClassVar[dict[str, Any]]
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

class Check(_Enum):
    X: ClassVar[Check]
    Y: ClassVar[Check]
    BOTH: ClassVar[Check]
    def __init__(self, value: int) -> None: ...

class ScaleRule(_Object):
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    min_scale: float
    max_scale: float
    def __init__(
        self,
        *,
        growth_factor: float = ...,
        backoff_factor: float = ...,
        growth_interval: int = ...,
        min_scale: float = ...,
        max_scale: float = ...,
    ) -> None: ...

def scale(
    inputs: _Tensors,
    outputs: _Tensors,
    scale: float,
    found_inf: torch.Tensor,
    found_inf_per_tensor: torch.Tensor | None = None,
) -> None: ...
def unscale(
    scaled_grads: _Tensors,
    master_grads: _Tensors,
    inv_scale: torch.Tensor,
    found_inf: torch.Tensor,
    accumulate: bool = False,
    found_inf_per_tensor: torch.Tensor | None = None,
) -> None: ...
def axpby(
    a: float,
    x: _Tensors,
    b: float,
    y: _Tensors,
    outputs: _Tensors,
    found_inf: torch.Tensor,
    checked: Check = ...,
    found_inf_per_tensor: torch.Tensor | None = None,
) -> None: ...
def check(
    tensors: _Tensors,
    found_inf: torch.Tensor,
    found_inf_per_tensor: torch.Tensor | None = None,
) -> None: ...
def check_l2norm(
    tensors: _Tensors,
    found_inf: torch.Tensor,
    found_inf_per_tensor: torch.Tensor | None = None,
) -> torch.Tensor: ...
def l2norm(
    tensors: _Tensors, per_tensor: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]: ...
def copy_cast(master_params: _Tensors, model_params: _Tensors) -> None: ...
def float8_scales(tensors: _Tensors, *, dtype: torch.dtype) -> torch.Tensor: ...
def float8_cast(
    tensors: Sequence[torch.Tensor],
    scales: torch.Tensor,
    *,
    dtype: torch.dtype,
    plain: bool = True,
    transposed: bool = True,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]: ...
def update_scale(
    loss_scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    rule: ScaleRule = ...,
) -> None: ...
def fused_step(
    algorithm: StepAlgorithm,
    grads: _Tensors,
    params: _Tensors,
    states: _Tensors,
    steps: torch.Tensor,
    hyper: torch.Tensor,
    groups: torch.Tensor,
    *,
    model_params: _Tensors = (),
    grad_factor: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    param_norms: torch.Tensor | None = None,
    update_norms: torch.Tensor | None = None,
    norm_averages: torch.Tensor | None = None,
    stochastic_rounding: bool = False,
) -> None: ...

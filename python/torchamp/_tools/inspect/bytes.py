"""How many bytes training keeps for each parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from torchamp._load import _C
from torchamp._shards import shard_of
from torchamp.amp._checkpoint_checks import first_states
from torchamp.amp._masters import LOW_PRECISION
from torchamp.optimizers import FusedOptimizer


@dataclasses.dataclass
class Bytes:
    """What training keeps in memory, in bytes."""

    weights: int = 0  #: with buffers
    grads: int = 0  #: what the next step uses
    masters: int = 0  #: those that are not the model's parameters themselves
    state: int = 0  #: the optimizer's
    activations: int = 0  #: what autograd keeps for the backward

    @property
    def total(self) -> int:
        return sum(self.to_dict().values())

    def to_dict(self) -> dict[str, int]:
        return dataclasses.asdict(self)

    def __add__(self, other: Bytes) -> Bytes:
        sums = zip(dataclasses.astuple(self), dataclasses.astuple(other))
        return Bytes(*(a + b for a, b in sums))


_UNITS = {"KiB": 2**10, "MiB": 2**20}


def unit_for(largest: int) -> str:
    """The unit of a table whose largest size, in bytes, this is."""
    return "KiB" if largest < 10 * _UNITS["MiB"] else "MiB"


def in_unit(size: int, unit: str) -> str:
    return f"{size / _UNITS[unit]:.1f}"


def bytes_of_params(
    model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]
) -> dict[torch.Tensor, Bytes]:
    """By parameter and buffer of the model."""
    sizes = {tensor: Bytes(weights=_size(tensor)) for tensor in _tensors_of(model)}
    for param in model.parameters():
        sizes[param].grads = _grad_size(param) if param.requires_grad else 0
    for optimizer in optimizers:
        for stepped in _stepped_by(optimizer):
            if stepped.param in sizes:
                sizes[stepped.param] += stepped.bytes
    return sizes


def float32_bytes_of(model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> Bytes:
    """The bytes of this training in float32, all parameters and buffers together."""
    total = Bytes()
    for tensor in _tensors_of(model):
        total.weights += _float32_size(tensor)
    for param in model.parameters():
        total.grads += _float32_size(param) if param.requires_grad else 0
    for optimizer in optimizers:
        total.state += sum(stepped.float32_state for stepped in _stepped_by(optimizer))
    return total


def _tensors_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return list(dict.fromkeys([*model.parameters(), *model.buffers()]))


def _size(tensor: torch.Tensor) -> int:
    """The bytes of the tensor, or of this rank's shard of a DTensor."""
    return shard_of(tensor).numel() * tensor.element_size()


def _grad_size(param: torch.Tensor) -> int:
    """The bytes of its grad, now or after the first plain backward."""
    made = param if param.grad is None else param.grad
    return shard_of(param).numel() * made.element_size()


def _float32_size(tensor: torch.Tensor) -> int:
    return _size(tensor) * (2 if tensor.dtype in LOW_PRECISION else 1)


@dataclasses.dataclass
class _Stepped:
    """What an optimizer keeps for a parameter of the model."""

    param: torch.Tensor
    bytes: Bytes  #: masters, what their grads take more than 16-bit ones, state
    float32_state: int


def _stepped_by(optimizer: torch.optim.Optimizer) -> Iterator[_Stepped]:
    amp_state = getattr(optimizer, "_torchamp", None)
    for group in optimizer.param_groups:
        for param in group["params"]:
            own = shard_of(param)
            stepped = own if amp_state is None else _C.stepped_for(own)
            sizes = Bytes()
            if stepped is not own:
                sizes.masters = _size(stepped)
                if param.requires_grad and param.grad is None and _widens_grads(amp_state):
                    sizes.grads = _size(stepped) - _size(own)
            sizes.state, float32_state = _state_sizes(optimizer, group, param, stepped)
            yield _Stepped(param, sizes, float32_state)


def _widens_grads(amp_state: Any) -> bool:
    """Whether the grads of masters will be float32, and not the 16-bit ones of autograd."""
    is_scaled = amp_state.session.settings.properties.loss_scale != 1.0
    return is_scaled and not amp_state.core.lazy


def _state_sizes(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    param: torch.Tensor,
    stepped: torch.Tensor,
) -> tuple[int, int]:
    """The bytes of its state, now or after the first step; and those of the same in float32."""
    state = optimizer.state.get(param) or {}
    if not state and not param.requires_grad:
        return 0, 0
    if not state and isinstance(optimizer, FusedOptimizer):
        dtype = torch.float64 if stepped.dtype == torch.float64 else optimizer.state_dtype
        count = len(_C.state_names(optimizer.algorithm_of(group)))
        state = dict(enumerate([torch.empty_like(stepped, dtype=dtype, device="meta")] * count))
    state = state or first_states(type(optimizer), group, [stepped])[0]
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(map(_size, tensors)), sum(map(_float32_size, tensors))

"""model.state_dict() gives float32, and model.load_state_dict() reaches the masters.

The hooks are functions of this module and find masters by the parameter, so that a copied or
unpickled model has hooks that see its own parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchamp.amp._master_weights import weights_of

_LOW_PRECISION = (torch.float16, torch.bfloat16)


def hook_state_dict(model: torch.nn.Module) -> None:
    """Installs the hooks on `model` and every module in it, each for its own tensors."""
    for module in model.modules():
        module.register_state_dict_post_hook(_give_float32)
        module.register_load_state_dict_pre_hook(_load_masters)
        module.register_load_state_dict_post_hook(_mark_synced)


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for named in (module._parameters, module._buffers):
        for name, tensor in named.items():
            if tensor is not None:
                yield name, tensor


def _give_float32(
    module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict
) -> None:
    for name, tensor in _own_tensors(module):
        given = state_dict.get(prefix + name)
        if not isinstance(given, torch.Tensor) or given.dtype not in _LOW_PRECISION:
            continue
        keeps_vars = given is tensor
        if not keeps_vars:
            state_dict[prefix + name] = _float32_of(tensor, given)


def _float32_of(tensor: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The master where the model still holds it, rounded. Something else may have been swapped in,
    past the version counter, by code that averages or clamps weights."""
    weights = weights_of(tensor)
    return given.float() if weights is None else weights.held_value(tensor)


def _load_masters(
    module: torch.nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: dict,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    if local_metadata.get("assign_to_params_buffers", False):
        raise RuntimeError(
            "load_state_dict: expected assign=False for a model that initialize has cast, got "
            "True, which would put other parameters in place of those that the optimizer knows; "
            "load without assign, or before initialize"
        )
    for name, param in module._parameters.items():
        weights, loaded = weights_of(param), state_dict.get(prefix + name)
        if weights is None or not isinstance(loaded, torch.Tensor) or loaded.shape != param.shape:
            continue
        weights.set_master_value(param, loaded)


def _mark_synced(module: torch.nn.Module, incompatible_keys: Any) -> None:
    for param in module._parameters.values():
        weights = weights_of(param)
        if weights is not None and weights.is_rounded_master(param):
            weights.mark_synced(param)

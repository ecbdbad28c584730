"""Stage 1: choose. The arguments of initialize, checked, as one object."""

from __future__ import annotations

import dataclasses
from typing import Any, SupportsFloat

import torch

from torchamp._load import _C
from torchamp.amp._kept import Rule, rules_of

_BOOLEANS = (True, False, "True", "False")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one initialize."""

    properties: _C.Properties
    overrides: tuple[str, ...]
    cast_model_outputs: torch.dtype | None
    #: Which modules stay in float32 at every level.
    keep_fp32: tuple[Rule, ...]
    num_losses: int
    min_loss_scale: float | None
    max_loss_scale: float
    max_consecutive_skips: int | None
    verbosity: int
    #: Whether steps detect writes to the model that bypass its version counters.
    adopt_data_writes: bool
    #: Whether every backward makes the masters' grads, also for fused optimizers.
    materialize_master_grads: bool

    @property
    def input_type(self) -> torch.dtype | None:
        """The dtype that forward casts floating inputs to; None if it does not cast them."""
        return self.properties.cast_model_type

    @property
    def output_type(self) -> torch.dtype | None:
        """The dtype that forward casts floating outputs to; None if it does not cast them."""
        if self.cast_model_outputs is not None:
            return self.cast_model_outputs
        return None if self.properties.cast_model_type is None else torch.float32

    @property
    def keeps_masters(self) -> bool:
        return bool(self.properties.master_weights)


def settings_for(
    opt_level: str = "O1",
    *,
    cast_model_type: torch.dtype | bool | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    adopt_data_writes: bool = False,
    materialize_master_grads: bool = False,
    max_consecutive_skips: int | None = None,
    keep_fp32: Any = (),
) -> Settings:
    """Settings of `opt_level` with the overrides that are not None.

    Raises RuntimeError for an unknown level and for a property that contradicts it, TypeError,
    ValueError and (keep_batchnorm_fp32, as apex) AssertionError for values that no level takes.
    """
    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    options = _C.Options(opt_level if isinstance(opt_level, str) else repr(opt_level))
    for name, value in given.items():
        _SETTERS[name](options, value)
    options.num_losses(_integer("num_losses", num_losses))
    if max_consecutive_skips is not None:
        options.max_consecutive_skips(_integer("max_consecutive_skips", max_consecutive_skips))
    return Settings(
        properties=options.resolve(),
        overrides=tuple(given),
        cast_model_outputs=_optional_floating_dtype("cast_model_outputs", cast_model_outputs),
        keep_fp32=rules_of(keep_fp32),
        num_losses=num_losses,
        min_loss_scale=_optional_number("min_loss_scale", min_loss_scale),
        max_loss_scale=_number("max_loss_scale", max_loss_scale),
        max_consecutive_skips=max_consecutive_skips,
        verbosity=_integer("verbosity", verbosity),
        adopt_data_writes=_boolean("adopt_data_writes", adopt_data_writes),
        materialize_master_grads=_boolean("materialize_master_grads", materialize_master_grads),
    )


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"initialize: expected {name} to be an integer, got {value!r}")
    return value


def _optional_number(name: str, value: Any) -> float | None:
    return None if value is None else _number(name, value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"initialize: expected {name} to be a number, got {value!r}")
    return float(value)


def _optional_floating_dtype(name: str, value: Any) -> torch.dtype | None:
    if value is not None and not _dtype(name, value).is_floating_point:
        raise TypeError(f"initialize: expected {name} to be a floating dtype, got {value}")
    return value


def _dtype(name: str, value: Any) -> torch.dtype:
    if not isinstance(value, torch.dtype):
        raise TypeError(f"initialize: expected {name} to be a torch.dtype, got {value!r}")
    return value


def _boolean(name: str, value: Any) -> bool:
    if value not in (True, False):
        raise TypeError(f"initialize: expected {name} to be True or False, got {value!r}")
    return bool(value)


def _set_cast_model_type(options: _C.Options, value: Any) -> None:
    if value is False:
        options.dont_cast_model()
    else:
        options.cast_model_type(_dtype("cast_model_type", value))


def _set_autocast(options: _C.Options, value: Any) -> None:
    options.autocast(_boolean("patch_torch_functions", value))


def _set_keep_batchnorm_fp32(options: _C.Options, value: Any) -> None:
    if value not in _BOOLEANS:
        raise AssertionError(
            "initialize: expected keep_batchnorm_fp32 to be True, False, 'True' or 'False', "
            f"got {value!r}"
        )
    options.keep_batchnorm_fp32(value in (True, "True"))


def _set_master_weights(options: _C.Options, value: Any) -> None:
    options.master_weights(_boolean("master_weights", value))


def _set_loss_scale(options: _C.Options, value: Any) -> None:
    try:
        options.loss_scale(value if isinstance(value, str) else float(value))
    except TypeError:
        raise TypeError(
            f"initialize: expected loss_scale to be 'dynamic' or a number, got {value!r}"
        ) from None


_SETTERS = {
    "cast_model_type": _set_cast_model_type,
    "patch_torch_functions": _set_autocast,
    "keep_batchnorm_fp32": _set_keep_batchnorm_fp32,
    "master_weights": _set_master_weights,
    "loss_scale": _set_loss_scale,
}

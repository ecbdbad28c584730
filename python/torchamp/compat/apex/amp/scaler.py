"""apex.amp.scaler: an initialize's loss scalers under apex's names."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchamp import ops
from torchamp._load import _C
from torchamp.amp._run.session import Session

__all__ = ["LossScaler"]

#: Without a min_loss_scale.
_FLOOR = ops.ScaleRule().min_scale


def _floor(value: Any) -> float:
    """None and 0 are no bound of the program's."""
    return float(value or _FLOOR)


def _number(name: str, value: Any, above: float = 0, kind: Callable[[Any], Any] = float) -> Any:
    """`value`, of any type that `kind`, float or int, makes a number of: text, NumPy's, a tensor of
    one element. Raises ValueError for others, for NaN and infinity. Waits for a tensor's device."""
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not above < number < math.inf:
        expected = f"a finite number above {above}"
        raise ValueError(f"LossScaler: expected {name} to be {expected}, got {value!r}")
    return number


def _of_rule(name: str, field: str, kind: Callable[[Any], Any] = float) -> Any:
    """The attribute `name`, which is the `field` of the scaler's rule."""

    def get(scaler: LossScaler) -> Any:
        value = getattr(scaler._core.rule, field)
        return None if value == _FLOOR else value

    def set_(scaler: LossScaler, value: Any) -> None:
        rule = scaler._core.rule
        setattr(rule, field, _number(name, value, kind=kind))
        scaler._core.rule = rule

    return property(get, set_)


class LossScaler:
    """The scaler of one loss of an initialize, with apex's attributes over torchamp.LossScaler.

    Attributes are numbers of any type, and tensors of one element; int() makes counts whole. Raises
    ValueError for others, and for what is not positive.
    """

    _core: _C.LossScaler
    _session: weakref.ref[Session]

    has_fused_kernel = True

    #: apex's scales always double and halve.
    _scale_factor = 2.0

    #: The program's buffer, used instead of the scaler's own.
    _their_buffer: torch.Tensor | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            "LossScaler: expected one of initialize's, _amp_state.loss_scalers, got a new one; use "
            "torchamp.LossScaler"
        )

    @property
    def dynamic(self) -> bool:
        return self._core.dynamic

    def loss_scale(self) -> float:
        """The scale. Waits for the device."""
        return self._core.loss_scale()

    @property
    def _loss_scale(self) -> float:
        return self._core.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: Any) -> None:
        self._core.set_loss_scale(_number("_loss_scale", value))

    @property
    def _unskipped(self) -> int:
        return self._core.state()[1]

    @_unskipped.setter
    def _unskipped(self, value: Any) -> None:
        self._core.load_state(self._loss_scale, _number("_unskipped", value, -1, int))

    _scale_seq_len = _of_rule("_scale_seq_len", "growth_interval", int)
    _min_loss_scale = _of_rule("_min_loss_scale", "min_scale", _floor)
    _max_loss_scale = _of_rule("_max_loss_scale", "max_scale")

    @property
    def _has_overflow(self) -> bool:
        """Whether the last backward overflowed."""
        return self.dynamic and bool(self._core.found_inf())

    @property
    def _overflow_buf(self) -> torch.Tensor:
        """int32 of one element, not 0 after an overflow. Programs replace it by their own,
        which the next update_scale reads."""
        if self._their_buffer is not None:
            return self._their_buffer
        return self._core.found_inf().ne(0).int().view(1)

    @_overflow_buf.setter
    def _overflow_buf(self, buffer: torch.Tensor) -> None:
        self._their_buffer = buffer

    def clear_overflow_state(self) -> None:
        """Forgets the last backward's overflow."""
        self._core.clear_found_inf()
        if self._their_buffer is not None:
            self._their_buffer.zero_()

    def update_scale(self) -> bool:
        """Takes the last backward into account; returns whether its step must be skipped. Whether
        to skip is the program's decision: amp forgets the overflow."""
        found_inf = self._core.found_inf()
        if self._their_buffer is not None:
            found_inf.copy_(self._their_buffer.view(()).ne(0))
        self._core.update(found_inf)
        must_skip, session = self._has_overflow, self._session()
        if session is not None:
            self._core.forget_deferred()
            for state in session.members.states:
                state.clear_overflows()
        return must_skip


def scalers_of(session: Session) -> list[LossScaler]:
    """One for each loss of the session."""
    scalers = [LossScaler.__new__(LossScaler) for _ in session.scalers]
    for scaler, core in zip(scalers, session.scalers):
        scaler._core, scaler._session = core, weakref.ref(session)
    return scalers

"""apex.amp.scaler: a loss scaler under apex's names."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchamp import ops
from torchamp._load import _C
from torchamp.amp._session import Session

__all__ = ["LossScaler"]

_WINDOW = 2000
#: Without a min_loss_scale.
_FLOOR = ops.ScaleRule().min_scale


class LossScaler:
    """A loss scale, "dynamic" or a number, with apex's attributes over torchamp.LossScaler.

    scale_factor is accepted as in apex, whose scales always double and halve. Without a
    min_loss_scale the scale stops at 2**-10, where apex's goes on to 0.

    Arguments and attributes are numbers of any type, and tensors of one element; int() makes counts
    whole. Raises ValueError for others, and for what is not positive.
    """

    has_fused_kernel = True

    #: Accepted, as the argument.
    _scale_factor = 2.0

    #: The program's buffer, used instead of the scaler's own.
    _their_buffer: torch.Tensor | None = None

    def __init__(
        self,
        loss_scale: float | str,
        init_scale: float = 2.0**16,
        scale_factor: float = 2.0,
        scale_window: int = _WINDOW,
        min_loss_scale: float | None = None,
        max_loss_scale: float = 2.0**24,
    ) -> None:
        rule = ops.ScaleRule(
            growth_interval=_number("scale_window", scale_window, 0, int),
            min_scale=_number("min_loss_scale", min_loss_scale, kind=_floor),
            max_scale=_number("max_loss_scale", max_loss_scale),
        )
        init_scale = _number("init_scale", init_scale)
        if loss_scale != "dynamic":
            loss_scale = _number("loss_scale", loss_scale)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._core = _C.LossScaler(loss_scale, init_scale=init_scale, rule=rule, device=device)

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

    @property
    def _scale_seq_len(self) -> int:
        return self._core.rule.growth_interval

    @_scale_seq_len.setter
    def _scale_seq_len(self, value: Any) -> None:
        self._change_rule(growth_interval=_number("_scale_seq_len", value, 0, int))

    @property
    def _min_loss_scale(self) -> float | None:
        floor = self._core.rule.min_scale
        return None if floor == _FLOOR else floor

    @_min_loss_scale.setter
    def _min_loss_scale(self, value: Any) -> None:
        self._change_rule(min_scale=_number("_min_loss_scale", value, kind=_floor))

    @property
    def _max_loss_scale(self) -> float:
        return self._core.rule.max_scale

    @_max_loss_scale.setter
    def _max_loss_scale(self, value: Any) -> None:
        self._change_rule(max_scale=_number("_max_loss_scale", value))

    def _change_rule(self, **changes: float) -> None:
        rule = self._core.rule
        for name, value in changes.items():
            setattr(rule, name, value)
        self._core.rule = rule

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

    def unscale(
        self,
        model_grads: Sequence[torch.Tensor],
        master_grads: Sequence[torch.Tensor],
        unused_scale: float | None = None,
        models_are_masters: bool = False,
        scale_override: float | None = None,
    ) -> None:
        """master_grads = model_grads / scale, noting an overflow."""
        inv_scale = self._core.inv_scale()
        if scale_override is not None:
            inv_scale.fill_(1.0 / scale_override)
        ops.unscale(list(model_grads), list(master_grads), inv_scale, self._core.found_inf())

    def update_scale(self) -> bool:
        """Takes the last backward into account; returns whether its step must be skipped."""
        found_inf = self._core.found_inf()
        if self._their_buffer is not None:
            found_inf.copy_(self._their_buffer.view(()).ne(0))
        self._core.update(found_inf)
        return self._has_overflow


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


class SessionScaler(LossScaler):
    """The scaler of one loss of an initialize."""

    def __init__(self, session: Session, loss_id: int) -> None:
        self._core = session.scalers[loss_id]
        self._session = weakref.ref(session)

    def update_scale(self) -> bool:
        """As LossScaler's. Whether to step is the program's decision: amp forgets the overflow."""
        must_skip = super().update_scale()
        session = self._session()
        if session is not None:
            self._core.forget_deferred()
            for state in session.states:
                state.clear_overflows()
        return must_skip

"""Stages 4 to 6, around a backward: scale the loss, unscale and check grads, update the scale."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Sequence

import torch

from torchamp._load import _C
from torchamp.amp._optimizer_state import OptimizerState
from torchamp.amp._session import Session


class Backward:
    """One backward of one loss, for the optimizers whose parameters get grads in it."""

    def __init__(
        self,
        session: Session,
        states: Sequence[OptimizerState],
        loss_id: int,
        delay_unscale: bool,
        delay_overflow_check: bool,
    ) -> None:
        self._session = session
        self._scaler = session.scaler(loss_id)
        self._states = states
        self._weights = list(dict.fromkeys(state.weights for state in states))
        self._loss_id = loss_id
        self._delay_unscale = delay_unscale
        self._delay_overflow_check = delay_overflow_check
        #: Of this backward: that of another may move the scale before finish().
        self._scaled_by: _C.LentScale | None = None
        self._prepared: list[_C.MasterWeights] = []

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` by the scale as it is now."""
        self._scaled_by = self._scaler.lend()
        return self._scaler.scale(loss, self._scaled_by)

    def prepare(self) -> None:
        """Sets grads of earlier backwards aside. Raises RuntimeError if those are scaled by another
        loss's scale, if another scale_loss has done so, or if a model was cast behind the
        optimizer's back."""
        for state in self._states:
            self._check_scaled_by(state)
            self._check_not_nested(state)
            state.late_report.flush()
        for weights in self._weights:
            weights.refresh()
        for weights in self._weights:
            if not self._delay_unscale and not weights.grads_are_scaled:
                weights.prepare_backward()
                self._prepared.append(weights)
        self._session.in_backward.extend(self._weights)

    def _check_scaled_by(self, state: OptimizerState) -> None:
        if state.weights.grads_are_scaled and state.scaled_by != self._loss_id:
            raise RuntimeError(
                f"scale_loss: expected loss_id {state.scaled_by}, by whose scale the grads are "
                "scaled that an earlier scale_loss left so with delay_unscale=True, "
                f"got {self._loss_id}"
            )

    def _check_not_nested(self, state: OptimizerState) -> None:
        if state.weights in self._session.in_backward:
            raise RuntimeError(
                "scale_loss: expected the optimizer to be in no other scale_loss that is still "
                "open, got one that is; close that one first, or scale the sum of the losses"
            )

    def cancel(self) -> None:
        """Puts the grads back as prepare() found them."""
        self._close()
        for weights in self._prepared:
            weights.cancel_backward()

    def _close(self) -> None:
        for weights in self._weights:
            self._session.in_backward.remove(weights)

    def finish(self) -> None:
        """Unscales, checks and updates, or puts that off."""
        self._close()
        for state in self._states:
            state.has_stepped = False
        if self._delay_unscale:
            for state in self._states:
                state.weights.grads_are_scaled = True
                state.scaled_by = self._loss_id
            return
        _C.finish_backward(
            self._weights,
            self._scaler,
            self._scaled_by,
            adds_to_found_inf=self._session.unchecked[self._loss_id],
            moves_scale=not self._delay_overflow_check,
        )
        if not self._scaler.dynamic:
            return
        for state in self._states:
            state.gather(self._loss_id, self._scaler.found_inf())
        self._session.unchecked[self._loss_id] = self._delay_overflow_check


class ScaledLoss(contextlib.AbstractContextManager):
    """The context that scale_loss gives: yields `loss` scaled, float32 and of the same sizes, and
    unscales the grads afterwards. After an exception grads and scaler are as before."""

    def __init__(
        self,
        session: Session,
        states: Sequence[OptimizerState],
        loss: torch.Tensor,
        loss_id: int = 0,
        delay_unscale: bool = False,
        delay_overflow_check: bool = False,
    ) -> None:
        self._scaler = session.scaler(loss_id)
        self._loss = loss
        self._was_cast = session.casts is not None
        self._backward: Backward | None = None
        if not self._scaler.is_identity or any(state.weights.has_masters for state in states):
            self._backward = Backward(session, states, loss_id, delay_unscale, delay_overflow_check)

    def __enter__(self) -> torch.Tensor:
        scale = self._scaler.scale if self._backward is None else self._backward.scale
        scaled_loss = _with_shielded_backward(scale(self._loss), self._loss, self._was_cast)
        if self._backward is not None:
            self._backward.prepare()
        return scaled_loss

    def __exit__(self, exception_type: type[BaseException] | None, *exception: object) -> None:
        if self._backward is None:
            return
        if exception_type is None:
            self._backward.finish()
        else:
            self._backward.cancel()


def _with_shielded_backward(
    scaled_loss: torch.Tensor, loss: torch.Tensor, was_cast: bool
) -> torch.Tensor:
    """`scaled_loss` with a backward that runs outside O1's autocast; another object than `loss`.
    Python functions in the backward are cast still, if the model `was_cast`."""
    result = scaled_loss.view_as(scaled_loss) if scaled_loss is loss else scaled_loss
    result.backward = functools.partial(_shielded_backward, weakref.ref(result), was_cast)
    return result


def _shielded_backward(loss: weakref.ref[torch.Tensor], was_cast: bool, *args, **kwargs) -> None:
    with _C.ShieldBackward(was_cast):
        torch.Tensor.backward(loss(), *args, **kwargs)

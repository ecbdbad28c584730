"""Stages 4 to 6, around a backward: scale the loss, unscale and check grads, update the scale."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Union

import torch

from torchamp._arguments import expect, is_boolean
from torchamp._load import _C
from torchamp._logging import warn
from torchamp.amp._casts.explain import explain_backward, explain_change
from torchamp.amp._optimizer.optimizer import Optimizers, states_of
from torchamp.amp._run.ranks import leave_unsynced
from torchamp.amp._run.session import Last, OptimizerSession, Session, common_session


def _backward(self: LossContext, *args: Any, **kwargs: Any) -> None:
    """All of it: the scaled loss's backward, with these arguments, in the context."""
    with self as scaled_loss:
        scaled_loss.backward(*args, **kwargs)


class PlainLoss(contextlib.nullcontext[torch.Tensor]):
    """The context after initialize(enabled=False)."""

    backward = _backward


class ScaledLoss(_C.Backward):
    """The context of amp.scale_loss. Grads and scaler are as before also if an interrupt drops it
    before it ends."""

    def __init__(
        self,
        session: Session,
        states: Sequence[OptimizerSession],
        loss: torch.Tensor,
        loss_id: int,
        delay_unscale: bool | None,
        delay_overflow_check: bool,
    ) -> None:
        _check_loss("scale_loss", session, loss)
        for state in states:
            if state.float32_param is not None:
                state.check_float32(state.float32_param())
        if delay_unscale is None:
            delay_unscale = _is_unsynced(session, states)
        else:
            is_right = is_boolean(delay_unscale)
            expect(is_right, "scale_loss", "delay_unscale", "True, False or None", delay_unscale)
        if delay_overflow_check is not False:
            is_right, what = is_boolean(delay_overflow_check), "True or False"
            expect(is_right, "scale_loss", "delay_overflow_check", what, delay_overflow_check)
        super().__init__(
            [state.core for state in states],
            session.scaler(loss_id, "scale_loss"),
            loss_id,
            delay_unscale,
            delay_overflow_check,
        )
        self._session = session
        self._states = states
        self._loss = loss
        self._loss_id = loss_id

    def __repr__(self) -> str:
        return f"ScaledLoss(loss_id={self._loss_id}, optimizers={len(self._states)})"

    backward = _backward

    def __enter__(self) -> torch.Tensor:
        try:
            return super().__enter__()
        except RuntimeError as error:
            dtype = self._session.settings.properties.cast_model_type
            explain_change(error, self._session.members.models(), dtype)
            raise

    def __exit__(self, kind: object, *others: object) -> None:
        for error in others if kind is not None else ():
            explain_backward(error)
        super().__exit__(kind, *others)
        if self.warning:
            warn(self.warning)
        for state in self._states if kind is None else ():
            if state.core.has_masters or self._session.scalers.are_dynamic:
                state.unseen_steps.note_backward(state.core.model_params)

    def begin(self) -> torch.Tensor:
        """What the context yields."""
        if self._session.notices.nonfinite is not None:
            self._session.notices.nonfinite.end()
        for data_parallel in self._session.members.data_parallel:
            if data_parallel.noted is not None:
                data_parallel.share()
        for state in self._states:
            state.check_skips()
            state.unseen_steps.look()
        return self.scale(self._loss)


class DTensorLoss(ScaledLoss):
    """The context for parameters some of which are DTensors: their shards have grads while the core
    looks at them."""

    def __enter__(self) -> torch.Tensor:
        with self._session.shards.mirrored():
            return super().__enter__()

    def __exit__(self, kind: object, *others: object) -> None:
        with self._session.shards.mirrored():
            super().__exit__(kind, *others)


#: What amp.scale_loss returns.
LossContext = Union[PlainLoss, ScaledLoss]


def _is_unsynced(session: Session, states: Sequence[OptimizerSession]) -> bool:
    """Whether DistributedDataParallel or fully_shard leaves grads to this rank, and reduces them
    with those of a later backward: they wait for it, scaled."""
    if session.shards and leave_unsynced(session.members.models()):
        return True
    for each in session.members.data_parallel:
        if each.is_unsynced and each.reaches([state.core for state in states]):
            return True
    return False


def scale_loss(
    loss: torch.Tensor,
    optimizers: Optimizers,
    loss_id: int = 0,
    model: torch.nn.Module | None = None,
    delay_unscale: bool | None = None,
    delay_overflow_check: bool = False,
) -> LossContext:
    """A context that gives the scaled loss, float32 and of the loss's sizes; call its backward in
    it, or in one call: `amp.scale_loss(loss, optimizer).backward()`. At the end the grads that
    `optimizers` step by are unscaled and checked, and the loss scale is updated. After an overflow
    the next step of each is skipped. After an exception in the context, grads and scale are as
    before.

    Args:
        loss: a floating tensor.
        optimizers: one or a list: all that step a parameter with a grad in this backward.
        loss_id: below initialize's num_losses; chooses the loss scale.
        model: accepted as in apex, and not needed.
        delay_unscale: True leaves grads scaled; a later scale_loss unscales them. None: where the
            model's last forward ran in no_sync() of DistributedDataParallel, which reduces the
            grads later.
        delay_overflow_check: True leaves it to a later scale_loss to update the scale.

    Raises:
        TypeError: for a loss that is not a floating tensor, and for optimizers that are none.
        IndexError: for a loss_id that is not below num_losses.
        RuntimeError: for optimizers that initialize did not return, or not in one call, and within
            another scale_loss of them.
    """
    states = states_of("scale_loss", optimizers)
    if states is None:
        return PlainLoss(loss)
    session = common_session("scale_loss", states)
    context = DTensorLoss if session.shards else ScaledLoss
    return context(session, states, loss, loss_id, delay_unscale, delay_overflow_check)


def _check_loss(function: str, session: Session, loss: Any) -> None:
    """Raises TypeError or RuntimeError, which name `function`, unless `loss` can be scaled."""
    if not isinstance(loss, torch.Tensor):
        expect(False, function, "loss", "a floating-point tensor", loss)
    session.check_trains(function)
    if session.awaits_loss:
        session.check_order()


def scale(loss: torch.Tensor, loss_id: int = 0) -> torch.Tensor:
    """Returns `loss` times its scale of the last initialize, float32 and of the loss's sizes, for
    backwards that finish() ends: where their loss is on another rank, as in a pipeline, or where
    several micro-batches make up a step. After initialize(enabled=False) it is `loss` itself::

        amp.scale(loss).backward()  # on the last stage; the others pass grads on
        amp.finish(optimizer)       # on every stage
        optimizer.step()

    Args:
        loss: a floating tensor.
        loss_id: below initialize's num_losses; chooses the loss scale.

    Raises:
        TypeError: for a loss that is not a floating tensor.
        IndexError: for a loss_id that is not below num_losses.
        RuntimeError: where there was no initialize.
    """
    return loss if Last.is_disabled else scaled(common_session("scale"), loss, loss_id)


def scaled(session: Session, loss: torch.Tensor, loss_id: int) -> torch.Tensor:
    """What scale returns."""
    _check_loss("scale", session, loss)
    return session.scaler(loss_id, "scale").scale(loss)


def finish(optimizers: Optimizers, loss_id: int = 0) -> None:
    """Ends the backwards, one or several, since the optimizers' zero_grad(): their grads, of losses
    that scale() gave here or on another rank, are unscaled and checked, and the loss scale is
    updated. All stages of a pipeline call it once per step, with the process_group of all stages
    given to initialize. Does nothing after initialize(enabled=False). A call that raises changes
    nothing.

    Args:
        optimizers: one or a list: all that step a parameter with a grad in these backwards.
        loss_id: below initialize's num_losses; chooses the loss scale.

    Raises:
        TypeError: for a loss_id that is not an integer.
        IndexError: for a loss_id that is not below num_losses.
        RuntimeError: for grads that an earlier finish() or scale_loss has unscaled, within
            scale_loss, and for optimizers that initialize did not return, or not in one call.
    """
    states = states_of("finish", optimizers)
    if states is not None:
        session = common_session("finish", states)
        end_backwards(session, states, loss_id)


def end_backwards(session: Session, states: Sequence[OptimizerSession], loss_id: int) -> None:
    """What finish does."""
    session.check_trains("finish")
    scaler = session.scaler(loss_id, "finish")
    for state in states:
        state.check_skips()
    with session.shards.mirrored():
        _C.finish([state.core for state in states], scaler, loss_id)

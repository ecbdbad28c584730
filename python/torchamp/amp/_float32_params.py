"""Float32 weights outside of steps, for a program that asks for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch

from torchamp._load import _C
from torchamp.amp._release import cast_without_master, session_of
from torchamp.amp._run.session import Session


def float32_params(
    models: torch.nn.Module | Iterable[torch.nn.Module],
) -> contextlib.AbstractContextManager[None]:
    """A context in which the parameters of models that initialize returned are float32, with the
    values of their masters, for code that works on weights outside of steps: averages, loaders of
    its own, pruning, numpy. Parameters and buffers stay the same objects, with their names and
    views, and forwards compute in float32. What is written to them reaches masters and models, also
    through ``.data``; after the context the models have it rounded. This holds for all models and
    optimizers of the same initialize.

    A step within it is one of its own. A backward within it leaves grads in the dtype that they
    have outside. A forward and its backward belong on one side: between them, saved activations and
    weights have two dtypes, for which some layers raise torch's errors. At O0, O1 and O4, within
    another float32_params and for plain models it does nothing. At O3, without masters, it widens
    the parameters, and rounds them again. Shards of ``fully_shard`` are float32 already; forwards
    compute in the dtype of their policy. Another thread finds float32 too.

    Args:
        models: a model that initialize returned, or a list of them.

    Raises:
        RuntimeError: for models of several calls of initialize, and for models that contain one
            that initialize returned.
    """
    session = session_of("float32_params", models)
    return contextlib.nullcontext() if session is None else _Float32Params(session)


class _Float32Params(contextlib.AbstractContextManager[None]):
    def __init__(self, session: Session) -> None:
        self._session = session
        self._loan: _C.Loan | None = None

    def __enter__(self) -> None:
        session = self._session
        if session.open_loan is not None:
            return
        for optimizer in session.members.optimizers():
            optimizer._torchamp.follow(optimizer, "float32_params")
        self._loan = _C.Loan.of_masters(session.masters, cast_without_master(session))
        session.note_loan(self._loan)
        self._loan.__enter__()
        self._loan.begin()

    def __exit__(self, *exception: object) -> None:
        loan, self._loan = self._loan, None
        if loan is not None:
            loan.__exit__(*exception)

"""The inverse of initialize: its models and optimizers are plain float32 ones again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchamp._arguments import listed, type_of, uncompiled
from torchamp._load import _C
from torchamp.amp._casts.masters import mastered, may_be_cast
from torchamp.amp._model.model import AmpModel
from torchamp.amp._model.swap_class import is_as_swapped, restore
from torchamp.amp._optimizer.optimizer import gates, inner_of
from torchamp.amp._optimizer.states import fit_states
from torchamp.amp._run.session import Session
from torchamp.optimizers import FusedOptimizer


def release(models: torch.nn.Module | Iterable[torch.nn.Module]) -> None:
    """The inverse of initialize, to train, save or initialize the models in another way: all models
    and optimizers of the initialize that returned `models` are plain float32 ones again. They stay
    the same objects. Parameters have their masters' values, bit for bit, and optimizers step them
    with the states that they have. Grads are dropped, as by zero_grad(), and scale_loss knows the
    optimizers no longer. Plain models stay as they are: copies, models that are released, and those
    of initialize(enabled=False). A call that raises changes nothing.

    Args:
        models: a model that initialize returned, or a list of them.

    Raises:
        RuntimeError: within scale_loss, for models that contain one that initialize returned, and
            where the program has given one of them another class, or another dtype than float32,
            since.
        ValueError: where the groups of two optimizers hold one master.
    """
    session = session_of("release", models)
    if session is not None:
        give_back(session)


def session_of(
    function: str, models: torch.nn.Module | Iterable[torch.nn.Module]
) -> Session | None:
    """The session of `models`; None where all are plain. Raises RuntimeError, which names
    `function`, for models of several, and TypeError."""
    session: Session | None = None
    for i, model in enumerate(map(uncompiled, listed(function, "models", models))):
        own = model._torchamp.session if isinstance(model, AmpModel) else None
        if own is None and not _is_plain(model):
            raise RuntimeError(
                f"{function}: expected models[{i}] to be a model that initialize returned, or a "
                f"plain one, got {type_of(model)}"
            )
        if own and session and own is not session:
            raise RuntimeError(
                f"{function}: expected models[{i}] to come from the same initialize as those "
                "before it, got one from another"
            )
        session = session or own
    return session


def _is_plain(model: Any) -> bool:
    """Whether it is no model of initialize, as copies are not, and models that are released."""
    if not isinstance(model, torch.nn.Module):
        return False
    return not any("_torchamp" in vars(module) for module in model.modules())


def give_back(session: Session) -> None:
    """Makes all models and optimizers of `session` plain; see release."""
    models = [model for model in session.members.models() if model._torchamp.session is session]
    optimizers = session.members.optimizers()
    parts = session.members.parts()
    _check_classes("models", models)
    _check_classes("parts of models", parts)
    for optimizer in optimizers:
        optimizer._torchamp.follow(optimizer, "release")
    if session.open_loan is not None:
        raise RuntimeError(
            "release: expected no float32_params to be open, but one is; release after it"
        )
    for state in session.members.states:
        state.check_releasable()
    session.masters.prepare_release()
    with torch.inference_mode(False):
        widened = {tensor: tensor.data.float() for tensor in cast_without_master(session)}
    _drop_grads(models, optimizers)
    for optimizer in optimizers:
        _publish_states(optimizer)
    session.masters.give_back()
    for tensor, data in widened.items():
        _C.set_data(tensor, data)
    for optimizer in optimizers:
        fit_states(optimizer, widened)
    for optimizer in optimizers:
        del vars(optimizer)["_torchamp"]
        for each in (optimizer, *inner_of(optimizer)):
            gates.give_back(each)
    restore([*models, *parts])
    session.end()


def _check_classes(argument: str, instances: list) -> None:
    for i, instance in enumerate(instances):
        if not is_as_swapped(instance):
            raise RuntimeError(
                f"release: expected {argument}[{i}] to have the class that initialize gave it, got "
                f"a {type(instance).__name__}; undo what has changed its class since"
            )


def cast_without_master(session: Session) -> list[torch.Tensor]:
    """What initialize cast and gave no master, of the models that are still the session's."""
    dtype = session.settings.properties.cast_model_type
    return [
        tensor
        for model in session.members.models()
        if model._torchamp.session is session
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.dtype == dtype and may_be_cast(tensor) and mastered(tensor) is None
    ]


def _drop_grads(models: list[AmpModel], optimizers: list[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    for model in models:
        for param in model.parameters():
            param.grad = None


def _publish_states(optimizer: Any) -> None:
    optimizer._torchamp.telemetry()
    if isinstance(optimizer, FusedOptimizer):
        optimizer.publish_states()
        optimizer.forget_layout()

"""What initialize does: stages 1 to 3."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchamp.amp import _checks
from torchamp.amp._adopt import adopt_model, adopt_parts
from torchamp.amp._cast import buffers_to_cast, cast_model, params_to_cast
from torchamp.amp._kept import Kept, rules_of
from torchamp.amp._masters import make_masters
from torchamp.amp._optimizer import adopt_optimizer
from torchamp.amp._policy import is_marked
from torchamp.amp._ranks.dtensor import check_dtensors, check_flattened
from torchamp.amp._report import announce, announce_buffers, announce_frozen
from torchamp.amp._session import Session
from torchamp.amp._settings import Settings
from torchamp.amp._snapshot import Snapshot
from torchamp.amp._state_dicts import hook_state_dict


def set_up(
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    settings: Settings,
    groups: Sequence[Any],
) -> Session:
    """Checks everything, then changes models and optimizers, or, after an exception, nothing.
    groups: whose ranks agree."""
    _checks.check_models(models)
    _checks.check_casts(settings)
    _checks.check_optimizers(optimizers)
    _checks.check_closures(optimizers, settings)
    _checks.check_in_backward(models, settings)
    _checks.check_shares(models, optimizers)
    _checks.check_real(models, optimizers, settings)
    check_dtensors(models, settings)
    check_flattened(optimizers, bool(groups), settings)
    _checks.warn_of_float64(models, settings)
    _checks.warn_of_averages(models, optimizers, settings)
    kept = Kept(models, rules_of("keep_fp32", settings.options["keep_fp32"]), is_marked)
    _checks.check_scripted(models, settings, kept)
    keeps_masters = settings.keeps_masters
    rounded = list(_to_cast(params_to_cast, models, settings, kept)) if keeps_masters else []
    _checks.check_owners(models, optimizers, rounded)
    snapshot = Snapshot(models, optimizers)
    session = Session(models, _checks.one_device(models, optimizers), settings)
    try:
        announce(settings, session.device)
        announce_frozen(settings, optimizers, rounded)
        announce_buffers(settings, _to_cast(buffers_to_cast, models, settings, kept))
        masters = make_masters(rounded, optimizers)
        for model in models:
            _cast(model, session, kept)
            adopt_model(model, session, kept)
            adopt_parts(model, kept, session)
        for optimizer in optimizers:
            adopt_optimizer(optimizer, session, masters)
        session.agree_over(groups)
    except BaseException as error:
        session.end()
        snapshot.restore()
        traceback.clear_frames(error.__traceback__)  # where variables hold masters
        raise
    return session


def _to_cast(
    find: Callable, models: list[torch.nn.Module], settings: Settings, kept: Kept
) -> Iterator[Any]:
    """What `find`, params_to_cast or buffers_to_cast, finds in all models."""
    dtype = settings.properties.cast_model_type
    for model in models if dtype is not None else []:
        yield from find(model, dtype, bool(settings.properties.keep_batchnorm_fp32), kept)


def _cast(model: torch.nn.Module, session: Session, kept: Kept) -> None:
    properties = session.settings.properties
    if properties.cast_model_type is None:
        return
    keeps_norms = bool(properties.keep_batchnorm_fp32)
    cast_model(model, properties.cast_model_type, keeps_norms, kept)
    if properties.cast_model_type != torch.float32:
        session.hooks.extend(hook_state_dict(model))

"""Stage 2: cast. What initialize makes of a model and of modules in it."""

from __future__ import annotations

import torch

from torchamp.amp._kept import Kept
from torchamp.amp._masters import LOW_PRECISION
from torchamp.amp._model import AmpModel, ModelState
from torchamp.amp._session import Session
from torchamp.amp._swap_class import swap_class


def adopt_model(model: torch.nn.Module, session: Session, kept: Kept) -> None:
    """Makes `model` an AmpModel that casts as the session's settings say, whatever an earlier
    session did."""
    settings, properties = session.settings, session.settings.properties
    shielded = properties.autocast_type is None
    inputs = kept.inputs_of(model)
    set_state(model, properties.cast_model_type, settings.output_type, shielded, session, inputs)


def adopt_parts(model: torch.nn.Module, kept: Kept, session: Session) -> None:
    """Makes the kept modules in `model` cast what they are called with to float32, and, where the
    model itself is cast, those that have 16-bit parameters cast it to their dtype."""
    low = session.settings.properties.cast_model_type
    if low not in LOW_PRECISION and session.casts is None:
        return
    inside = [module for module in model.modules() if module is not model]
    for module in inside:
        if module in kept.outermost:
            _adopt_part(module, torch.float32, session)
        elif kept and module not in kept and _has_own(module, low):
            _adopt_part(module, low, session)


def _has_own(module: torch.nn.Module, dtype: torch.dtype | None) -> bool:
    return any(param.dtype == dtype for param in module.parameters(recurse=False))


def _adopt_part(module: torch.nn.Module, dtype: torch.dtype | None, session: Session) -> None:
    set_state(module, dtype, None, shielded=dtype == torch.float32, session=None)
    session.add_part(module)


def set_state(
    model: torch.nn.Module,
    input_type: torch.dtype | None,
    output_type: torch.dtype | None,
    shielded: bool,
    session: Session | None,
    kept_inputs: tuple[int | str, ...] = (),
) -> None:
    data_parallel = None if session is None else session.add_model(model)
    earlier = model.__dict__.get("_torchamp")
    inner_forward = model.__dict__.pop("forward", earlier and earlier.inner_forward)
    model.__dict__["_torchamp"] = ModelState(
        input_type, output_type, shielded, inner_forward, session, data_parallel, kept_inputs
    )
    if earlier and earlier.session:
        earlier.session.close_if_left()
    if not isinstance(model, AmpModel):
        swap_class(model, AmpModel)

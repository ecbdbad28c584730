"""What repr and notebooks show of a session, and of what initialize returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchamp._tables import html_table

if TYPE_CHECKING:
    from torchamp._load import _C
    from torchamp.amp._session import Session


def describe_model(session: Session | None, input_type: object) -> str:
    """For a module's extra_repr. session: None of one whose calls alone are cast, to input_type."""
    if session is not None:
        return f"torchamp: {session.settings.properties}"
    return f"torchamp: called with {str(input_type).replace('torch.', '')}"


def describe_optimizer(session: Session, core: _C.OptimizerState) -> str:
    """A line, like those of an optimizer's groups."""
    params = core.params()
    masters = sum(param.has_master for param in params)
    return (
        f"torchamp: {len(params)} tensors, {masters} of them float32 masters, "
        f"{session.settings.properties}"
    )


def facts_of(session: Session) -> list[tuple[str, str]]:
    """Names and values. Waits for the device, but not while a graph is captured."""
    properties = session.settings.properties
    return [
        ("opt_level", properties.opt_level),
        *((name, value) for name, value in properties.describe() if name != "loss scale"),
        ("models", ", ".join(type(model).__name__ for model in session.models())),
        ("optimizers", ", ".join(type(each).__name__ for each in session.optimizers())),
        *((f"loss scaler {i}", repr(scaler)) for i, scaler in enumerate(session.scalers)),
    ]


def describe(session: Session | None) -> str:
    """Of an Amp, in lines; None if it is not enabled."""
    if session is None:
        return "Amp(enabled=False)"
    lines = "".join(f"\n  {name}: {value}" for name, value in facts_of(session))
    return f"Amp({lines}\n)"


def describe_as_html(session: Session | None) -> str:
    if session is None:
        return "<p>Amp(enabled=False)</p>"
    return html_table("Amp", ["", ""], facts_of(session))

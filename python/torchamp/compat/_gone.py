"""What apex has and its replacement has not, and what to use instead."""

from __future__ import annotations

#: By apex's name.
INSTEAD = {
    "apex.fused_dense": "torch.nn.Linear and torch.nn.GELU",
}


def message_of(name: str) -> str | None:
    """What to say of apex's `name`, or None of one that is not in the table."""
    instead = INSTEAD.get(name)
    return instead and f"torchamp has no {name}: use {instead}, or install apex, which ships it"

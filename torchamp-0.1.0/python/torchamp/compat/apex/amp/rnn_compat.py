"""apex.amp.rnn_compat: what kind of recurrent modules this torch has."""

__all__ = ["has_old_rnns"]


def has_old_rnns() -> bool:
    """Whether torch's recurrent modules are those from before 1.0: never."""
    return False

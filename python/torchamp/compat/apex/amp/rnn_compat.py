"""apex.amp.rnn_compat: what kind of recurrent modules this torch has."""

__all__ = ["RNN_NAMES", "has_old_rnns"]

#: torch's recurrent functions.
RNN_NAMES = ["rnn_relu", "rnn_tanh", "gru", "lstm"]


def has_old_rnns() -> bool:
    """Whether torch's recurrent modules are those from before 1.0: never."""
    return False

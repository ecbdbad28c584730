"""apex.amp: torchamp.amp's functions, which have apex's names and signatures, and the private names
of apex's that programs reach for."""

from torchamp.amp import *  # noqa: F403
from torchamp.amp import __all__ as _public
from torchamp.compat import _gone
from torchamp.compat.apex.amp import _amp_state, amp, frontend, handle, lists, rnn_compat, scaler
from torchamp.compat.apex.amp.amp import init
from torchamp.compat.apex.amp.frontend import initialize  # type: ignore[no-redef]  # noqa: F401  in _public

__all__ = [
    *_public,
    "_amp_state",
    "amp",
    "frontend",
    "handle",
    "init",
    "lists",
    "rnn_compat",
    "scaler",
]

__getattr__: _gone.Getattr = _gone.attributes_of("apex.amp")

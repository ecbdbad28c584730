"""apex.amp._process_optimizer: the kind of an optimizer's `_amp_stash`."""

from torchamp.compat.apex.amp._stash import Stash as AmpOptimizerState

__all__ = ["AmpOptimizerState"]

"""apex.amp.frontend: initialize, and the properties that it chose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchamp import amp
from torchamp.amp import load_state_dict, state_dict
from torchamp.amp._settings import settings_for
from torchamp.compat.apex.amp._amp_state import Properties, _amp_state
from torchamp.compat.apex.amp._stash import attach_stash
from torchamp.compat.apex.fp16_utils import FP16_Optimizer

__all__ = ["Properties", "initialize", "load_state_dict", "opt_levels", "state_dict"]

#: By level: a function that gives its Properties.
opt_levels: dict[str, Callable[[], Properties]] = {
    level: functools.partial(lambda level: Properties(settings_for(level)), level)
    for level in ("O0", "O1", "O2", "O3", "O4", "O5")
}


@functools.wraps(amp.initialize, assigned=("__doc__",))
def initialize(models: Any, optimizers: Any = None, *args: Any, **options: Any) -> Any:
    _refuse_fp16_optimizers(optimizers)
    options.setdefault("adopt_data_writes", True)
    returned = amp.initialize(models, optimizers, *args, **options)
    _amp_state.forget_legacy_handle()
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        attach_stash(optimizer)
    return returned


def _refuse_fp16_optimizers(optimizers: Any) -> None:
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        if isinstance(optimizer, FP16_Optimizer):
            raise RuntimeError(
                "initialize: expected optimizers to be torch.optim.Optimizers, got an "
                "FP16_Optimizer, which keeps masters and scales losses itself; pass the optimizer "
                "that it wraps"
            )

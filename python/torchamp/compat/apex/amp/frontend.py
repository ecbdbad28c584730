"""apex.amp.frontend: initialize, and the properties that it chose."""

from __future__ import annotations

import functools
from typing import Any

from torchamp import amp
from torchamp.amp import load_state_dict, state_dict
from torchamp.amp._run.settings import DESCRIPTIONS
from torchamp.compat.apex.amp._amp_state import _amp_state
from torchamp.compat.apex.amp._list_edits import follow_list_edits
from torchamp.compat.apex.amp._stash import attach_stash
from torchamp.compat.apex.fp16_utils import FP16_Optimizer

__all__ = [*DESCRIPTIONS, "initialize", "load_state_dict", "opt_levels", "state_dict"]

#: What each does, where apex has functions that set properties.
opt_levels = DESCRIPTIONS

globals().update(opt_levels)


@functools.wraps(amp.initialize, assigned=("__doc__",))
def initialize(models: Any, optimizers: Any = None, *args: Any, **options: Any) -> Any:
    given = optimizers if isinstance(optimizers, list) else [optimizers]
    if any(isinstance(optimizer, FP16_Optimizer) for optimizer in given):
        raise RuntimeError(
            "initialize: expected optimizers to be torch.optim.Optimizers, got an FP16_Optimizer, "
            "which keeps masters and scales losses itself; pass the optimizer that it wraps"
        )
    options.setdefault("adopt_data_writes", True)
    follow_list_edits()
    returned = amp.initialize(models, optimizers, *args, **options)
    _amp_state.forget_legacy_handle()
    for optimizer in given:
        attach_stash(optimizer)
    return returned

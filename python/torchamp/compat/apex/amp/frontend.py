"""apex.amp.frontend: initialize, and the properties that it chose."""

from __future__ import annotations

import functools
from typing import Any

from torchamp import amp
from torchamp.amp import load_state_dict, state_dict
from torchamp.amp._settings import Settings, settings_for
from torchamp.compat.apex.amp import _amp_state
from torchamp.compat.apex.amp._stash import attach_stash
from torchamp.compat.apex.fp16_utils import FP16_Optimizer

__all__ = ["Properties", "initialize", "load_state_dict", "opt_levels", "state_dict"]


class Properties:
    """What a level does, as attributes and in the dict `options`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.options = _options_of(settings)

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("options", {})
        if name not in options:
            raise AttributeError(f"Properties: expected one of {', '.join(options)}, got {name!r}")
        return options[name]


def _options_of(settings: Settings | None) -> dict[str, Any]:
    properties = settings and settings.properties
    casts_ops = settings is not None and properties.autocast_type is not None
    return {
        "enabled": settings is not None,
        "opt_level": properties and properties.opt_level,
        "cast_model_type": properties and properties.cast_model_type,
        "patch_torch_functions": casts_ops,
        "keep_batchnorm_fp32": properties and properties.keep_batchnorm_fp32,
        "master_weights": properties and properties.master_weights,
        "loss_scale": properties.loss_scale if properties else 1.0,
    }


#: By level: a function that gives its Properties.
opt_levels = {
    level: functools.partial(lambda level: Properties(settings_for(level)), level)
    for level in ("O0", "O1", "O2", "O3", "O4", "O5")
}


@functools.wraps(amp.initialize, assigned=("__doc__",))
def initialize(models: Any, optimizers: Any = None, *args: Any, **options: Any) -> Any:
    _refuse_fp16_optimizers(optimizers)
    if _amp_state.allow_incoming_model_not_fp32:
        for model in models if isinstance(models, list) else [models]:
            model.float()
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
                "that it was made of"
            )

"""What initialize chose, under apex's names."""

from __future__ import annotations

from typing import Any

from torchamp.amp._run.settings import Settings


class ChosenProperties:
    """The properties of an initialize, as attributes and in the dict `options`; None: of one that
    was disabled. Attributes that are set raise AttributeError."""

    def __init__(self, settings: Settings | None) -> None:
        chosen = None if settings is None else settings.properties
        options: dict[str, Any] = {
            "enabled": chosen is not None,
            "opt_level": chosen and chosen.opt_level,
            "cast_model_type": chosen and chosen.cast_model_type,
            "patch_torch_functions": chosen is not None and chosen.autocast_type is not None,
            "keep_batchnorm_fp32": chosen and chosen.keep_batchnorm_fp32,
            "master_weights": chosen and chosen.master_weights,
            "loss_scale": chosen.loss_scale if chosen else 1.0,
        }
        vars(self).update(options, options=options)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"opt_properties: expected {name!r} to stay as initialize chose it, got {value!r}; "
            "pass it to initialize"
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"opt_properties: expected one of {', '.join(self.options)}, got {name!r}"
        )

"""A level's properties, under apex's names."""

from __future__ import annotations

from typing import Any

from torchamp.amp._settings import Settings


class Properties:
    """A level's properties, as attributes and in the dict `options`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.options: dict[str, Any] = _options_of(settings)

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("options", {})
        if name not in options:
            raise AttributeError(f"Properties: expected one of {', '.join(options)}, got {name!r}")
        return options[name]


def _options_of(settings: Settings | None) -> dict[str, Any]:
    properties = None if settings is None else settings.properties
    casts_ops = properties is not None and properties.autocast_type is not None
    return {
        "enabled": settings is not None,
        "opt_level": properties and properties.opt_level,
        "cast_model_type": properties and properties.cast_model_type,
        "patch_torch_functions": casts_ops,
        "keep_batchnorm_fp32": properties and properties.keep_batchnorm_fp32,
        "master_weights": properties and properties.master_weights,
        "loss_scale": properties.loss_scale if properties else 1.0,
    }

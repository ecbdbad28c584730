"""What a level chooses, under apex's names: the properties and the functions that set them."""

from __future__ import annotations

from typing import Any

from torchamp.amp._settings import DESCRIPTIONS, Settings, settings_for

_UNSET: dict[str, Any] = {
    "enabled": False,
    "opt_level": None,
    "cast_model_type": None,
    "patch_torch_functions": False,
    "keep_batchnorm_fp32": None,
    "master_weights": None,
    "loss_scale": 1.0,
}


class Properties:
    """A level's properties, as attributes and in the dict `options`.

    Raises RuntimeError where an attribute is given a value that contradicts `opt_level`, and what
    initialize raises for one that no level takes.
    """

    def __init__(self) -> None:
        self.__dict__["options"] = dict(_UNSET)

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("options", {})
        if name not in options:
            raise AttributeError(f"Properties: expected one of {', '.join(options)}, got {name!r}")
        return options[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.options:
            self.options[name] = self._checked(name, value)
        else:
            self.__dict__[name] = value

    def _checked(self, name: str, value: Any) -> Any:
        if value is None or name in ("enabled", "opt_level"):
            return value
        settings = settings_for(self.opt_level or "O0", **{name: value})
        checked: dict[str, Any] = {**settings.options, "loss_scale": settings.properties.loss_scale}
        return checked[name]

    def _update_options_dict(self, new_options: dict[str, Any]) -> None:
        """Sets properties without checking values. Raises ValueError for another name."""
        for name, value in new_options.items():
            if name not in self.options:
                raise ValueError(
                    f"Properties: expected one of {', '.join(self.options)}, got {name!r}"
                )
            self.options[name] = value


class ChosenProperties(Properties):
    """The properties of an initialize, which later writes do not change: they raise
    AttributeError."""

    def __init__(self, settings: Settings | None) -> None:
        super().__init__()
        if settings is not None:
            self._update_options_dict(_options_of(settings))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"opt_properties: expected {name!r} to stay as initialize chose it, got {value!r}; "
            "pass it to initialize"
        )


def _options_of(settings: Settings) -> dict[str, Any]:
    properties = settings.properties
    return {
        "enabled": True,
        "opt_level": properties.opt_level,
        "cast_model_type": properties.cast_model_type,
        "patch_torch_functions": properties.autocast_type is not None,
        "keep_batchnorm_fp32": properties.keep_batchnorm_fp32,
        "master_weights": properties.master_weights,
        "loss_scale": properties.loss_scale,
    }


class _Level:
    """Sets properties to those of the level that its class is named after, and returns them."""

    more = ""

    @property
    def brief(self) -> str:
        return f"{type(self).__name__}: {DESCRIPTIONS[type(self).__name__]}"

    def __call__(self, properties: Properties) -> Properties:
        properties._update_options_dict(_options_of(settings_for(type(self).__name__)))
        return properties


#: By level, which is also its class's name.
opt_levels: dict[str, _Level] = {level: type(level, (_Level,), {})() for level in DESCRIPTIONS}

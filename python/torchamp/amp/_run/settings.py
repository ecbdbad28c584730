"""Stage 1: choose. The options of initialize: their types, defaults and checks, each option once.

Their types are evaluated, and so are written as Python 3.9 reads them.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import torch

from torchamp._arguments import hint_on, is_boolean, is_number
from torchamp._load import _C
from torchamp.amp._casts.cast import Rule, rules_of

#: The opt levels that initialize takes.
Level = Literal["O0", "O1", "O2", "O3", "O4", "O5"]

#: What each of them does.
DESCRIPTIONS = {
    "O0": "everything in float32",
    "O1": "float32 weights, ops in float16 where that is safe",
    "O2": "float16 model, float32 batch norm and master weights",
    "O3": "everything in float16",
    "O4": "float32 weights, ops in bfloat16 where that is safe",
    "O5": "bfloat16 model, float32 batch norm and master weights",
}

#: By levels of float16, those that do the same in bfloat16.
IN_BFLOAT16 = {"O1": "O4", "O2": "O5", "O3": "O5"}


#: By names that initialize lacks, its own, or what has them.
_INSTEAD = {
    **dict.fromkeys(("precision", "dtype", "mixed_precision"), "opt_level"),
    "dynamic_loss_scale": "loss_scale",
    "keep_bn_fp32": "keep_batchnorm_fp32",
    **dict.fromkeys(
        ("growth_factor", "backoff_factor", "growth_interval"),
        "assign an ops.ScaleRule to torchamp.Amp(…).loss_scalers[0].rule",
    ),
    **dict.fromkeys(
        ("init_scale", "initial_scale"),
        "write amp.load_state_dict({'loss_scaler0': {'loss_scale': …, 'unskipped': 0}})",
    ),
    **dict.fromkeys(("loss_id", "delay_unscale", "delay_overflow_check"), "give it to scale_loss"),
    "device": "call model.to(device) before the optimizer is made",
    "decay": "weight_decay is the optimizer's, and AveragedModel averages",
}


@dataclasses.dataclass(frozen=True)
class Option:
    """What an option's type does not say."""

    default: Any
    #: Takes the option's name and a value that is not None, and gives what settings have. Raises
    #: TypeError.
    check: Callable[[str, Any], Any]
    #: The options that apex has can be given by their place.
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD


_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def _expect(is_right: bool, name: str, what: str, value: Any) -> None:
    if not is_right:
        raise TypeError(f"initialize: expected {name} to be {what}, got {value!r}")


def _integer(name: str, value: Any) -> int:
    _expect(isinstance(value, int), name, "an integer", value)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"initialize: expected {name} to fit into 64 bits, got {value}")
    return value


def _number(name: str, value: Any) -> float:
    _expect(is_number(value), name, "a number", value)
    return float(value)


def _boolean(name: str, value: Any) -> bool:
    _expect(is_boolean(value), name, "True or False", value)
    return bool(value)


def _text_or_boolean(name: str, value: Any) -> bool:
    """Raises AssertionError, which programs may expect."""
    if not (is_boolean(value) or value in ("True", "False")):
        raise AssertionError(
            f"initialize: expected {name} to be True, False, 'True' or 'False', got {value!r}"
        )
    return value in (True, "True")


def _floating_dtype(name: str, value: Any) -> torch.dtype:
    _expect(isinstance(value, torch.dtype), name, "a torch.dtype", value)
    _expect(value.is_floating_point, name, "a floating dtype", value)
    return value


def _dtype_or_false(name: str, value: Any) -> Union[torch.dtype, bool]:
    _expect(value is False or isinstance(value, torch.dtype), name, "a torch.dtype", value)
    return value


def _boolean_or_names(name: str, value: Any) -> Union[bool, list[str]]:
    is_list = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    _expect(is_list or is_boolean(value), name, "True, False or a list of modules' names", value)
    return list(value) if is_list else bool(value)


def _text_or_number(name: str, value: Any) -> Union[str, float]:
    is_right = isinstance(value, str) or (is_number(value) and not isinstance(value, bool))
    _expect(is_right, name, "'dynamic' or a number", value)
    return value if isinstance(value, str) else float(value)


class Overrides(TypedDict, total=False):
    """What initialize changes of a level; its docstring says what each means."""

    cast_model_type: Annotated[Optional[Union[torch.dtype, bool]], Option(None, _dtype_or_false)]
    patch_torch_functions: Annotated[Optional[bool], Option(None, _boolean)]
    keep_batchnorm_fp32: Annotated[Optional[Union[bool, str]], Option(None, _text_or_boolean)]
    master_weights: Annotated[Optional[bool], Option(None, _boolean)]
    loss_scale: Annotated[Optional[Union[float, str]], Option(None, _text_or_number)]
    cast_model_outputs: Annotated[Optional[torch.dtype], Option(None, _floating_dtype)]
    num_losses: Annotated[int, Option(1, _integer)]
    verbosity: Annotated[int, Option(1, _integer)]
    min_loss_scale: Annotated[Optional[float], Option(None, _number)]
    max_loss_scale: Annotated[Optional[float], Option(2.0**24, _number)]
    adopt_data_writes: Annotated[bool, Option(False, _boolean, kind=_BY_NAME)]
    materialize_master_grads: Annotated[bool, Option(True, _boolean, kind=_BY_NAME)]
    max_consecutive_skips: Annotated[Optional[int], Option(None, _integer, kind=_BY_NAME)]
    float8: Annotated[Union[bool, Sequence[str]], Option(False, _boolean_or_names, kind=_BY_NAME)]
    keep_fp32: Annotated[Union[Rule, Iterable[Rule]], Option((), rules_of, kind=_BY_NAME)]


_HINTS = typing.get_type_hints(Overrides, include_extras=True)
_OPTIONS: dict[str, Option] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
_PARAMETERS = [
    inspect.Parameter(name, option.kind, default=option.default, annotation=hint.__origin__)
    for (name, option), hint in zip(_OPTIONS.items(), _HINTS.values())
]


def show_options(function: Callable) -> None:
    """Makes inspect.signature show the options instead of the function's *args and **kwargs, which
    is its last."""
    signature = inspect.signature(function)
    own = list(signature.parameters.values())
    place = [each.kind for each in own].index(inspect.Parameter.VAR_POSITIONAL)
    shown = [*own[:place], *_PARAMETERS, *own[place + 1 : -1]]
    vars(function)["__signature__"] = signature.replace(parameters=shown)


def named(*by_place: Any, **by_name: Any) -> dict[str, Any]:
    """The options that are given, by name. Raises TypeError for others."""
    try:
        return inspect.Signature(_PARAMETERS).bind(*by_place, **by_name).arguments
    except TypeError as error:
        wrong = next((name for name in by_name if name not in _OPTIONS), "")
        known = ("models", "optimizers", "enabled", "opt_level", "process_group", *_OPTIONS)
        raise TypeError(f"initialize() {error}{hint_on(wrong, known, _INSTEAD)}") from None


@dataclasses.dataclass(frozen=True)
class Settings:
    """What one initialize has chosen."""

    properties: _C.Properties
    #: All of them, checked. None: what the level has.
    options: Overrides

    @property
    def output_type(self) -> Optional[torch.dtype]:
        """The dtype that forward casts floating outputs to; None if it does not cast them."""
        if self.options["cast_model_outputs"] is not None:
            return self.options["cast_model_outputs"]
        return None if self.properties.cast_model_type is None else torch.float32

    @property
    def keeps_masters(self) -> bool:
        return bool(self.properties.master_weights)


def settings_for(opt_level: str = "O1", **given: Any) -> Settings:
    """Settings of `opt_level` with the options that are given.

    Raises RuntimeError for an unknown level and for a property that contradicts it, TypeError,
    ValueError and (keep_batchnorm_fp32) AssertionError for values that no level takes.
    """
    given = named(**given)
    level = _C.Options(opt_level if isinstance(opt_level, str) else repr(opt_level))
    options: Any = {}
    for name, option in _OPTIONS.items():
        value = given.get(name, option.default)
        options[name] = value = None if value is None else option.check(name, value)
        if value is not None:
            level.set(name, value)
    return Settings(level.resolve(), options)

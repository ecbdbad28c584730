"""apex.amp.utils: casts of a function's arguments, and functions of modules by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = [
    "casted_args",
    "collect_fp_tensor_types",
    "get_cuda_version",
    "get_func",
    "has_func",
    "is_cuda_enabled",
    "is_fp_tensor",
    "is_nested",
    "maybe_float",
    "maybe_half",
    "set_func",
    "set_func_save",
    "type_string",
]


def is_cuda_enabled() -> bool:
    """Whether torch is built for CUDA."""
    return torch.version.cuda is not None


def get_cuda_version() -> tuple[int, ...]:
    """CUDA's version, such as (12, 4). Raises AttributeError where torch is built without it."""
    return tuple(int(part) for part in torch.version.cuda.split("."))


def is_nested(x: Any) -> bool:
    """Whether `x` is a list or a tuple."""
    return isinstance(x, (list, tuple))


def is_fp_tensor(x: Any) -> bool:
    """Whether `x` is a floating tensor, or a list or tuple, nested or not, of nothing else."""
    if is_nested(x):
        return all(map(is_fp_tensor, x))
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def type_string(x: torch.Tensor) -> str:
    """The last part of `x.type()`, such as "HalfTensor"."""
    return x.type().split(".")[-1]


def collect_fp_tensor_types(args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """Each type_string of the floating tensors among the arguments, once."""
    types: dict[str, None] = {}

    def collect(x: Any) -> None:
        if is_nested(x):
            for element in x:
                collect(element)
        else:
            types[type_string(x)] = None

    for x in (*args, *kwargs.values()):
        if is_fp_tensor(x):
            collect(x)
    return list(types)


def maybe_half(x: Any, name: str = "", verbose: bool = False) -> Any:
    """The floating tensor or tensors `x` in float16."""
    return _cast(x, torch.float16)


def maybe_float(x: Any, name: str = "", verbose: bool = False) -> Any:
    """The floating tensor or tensors `x` in float32."""
    return _cast(x, torch.float32)


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return type(x)(_cast(each, dtype) for each in x) if is_nested(x) else x.to(dtype)


def casted_args(cast_fn: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """`args` with `cast_fn` of the floating ones; those of `kwargs` are replaced in it."""
    for name, x in kwargs.items():
        if is_fp_tensor(x):
            kwargs[name] = cast_fn(x)
    return [cast_fn(x) if is_fp_tensor(x) else x for x in args]


def has_func(mod: Any, fn: str) -> bool:
    """Whether `mod`, a module, class or dict, has a function `fn`."""
    return fn in mod if isinstance(mod, dict) else hasattr(mod, fn)


def get_func(mod: Any, fn: str) -> Callable:
    """The function `fn` of `mod`."""
    return mod[fn] if isinstance(mod, dict) else getattr(mod, fn)


def set_func(mod: Any, fn: str, new_fn: Callable) -> None:
    """Replaces the function `fn` of `mod`."""
    if isinstance(mod, dict):
        mod[fn] = new_fn
    else:
        setattr(mod, fn, new_fn)


def set_func_save(handle: Any, mod: Any, fn: str, new_fn: Callable) -> None:
    """Replaces it until the handle's _deactivate()."""
    handle._save_func(mod, fn, get_func(mod, fn))
    set_func(mod, fn, new_fn)

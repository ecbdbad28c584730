"""Lists the replacement of each apex name."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torchamp.compat import alias


def explain() -> str:
    """One line per apex module and one per name in it, with its replacement. Installs the alias."""
    alias.install()
    return "\n".join(line for name in module_names() for line in _lines_of(name))


def module_names() -> Iterator[str]:
    """apex's modules that torchamp has, parents first."""
    for root, target in alias.ROOTS.items():
        yield root
        spec = importlib.util.find_spec(target)
        found = pkgutil.walk_packages(spec.submodule_search_locations or [], f"{target}.")
        yield from (root + module.name[len(target) :] for module in found)


def _lines_of(name: str) -> Iterator[str]:
    ours = importlib.import_module(alias.target_of(name))
    if not hasattr(ours, "__all__"):  # beside apex's modules
        return
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        yield f"{name:<48} cannot be imported: {error}"
        return
    yield f"{name:<48} {_where(module)}"
    for attribute in ours.__all__:
        if not isinstance(getattr(ours, attribute), ModuleType):  # which has its own lines
            yield f"{name + '.' + attribute:<48} {_where(getattr(module, attribute))}"


def _where(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__ if alias.is_ours(value) else f"{value.__name__} ({value.__file__})"
    name = getattr(value, "__qualname__", f"{type(value).__qualname__} object")
    return f"{getattr(value, '__module__', type(value).__module__)}.{name}"

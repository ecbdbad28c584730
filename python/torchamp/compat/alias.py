"""Makes apex's names importable: a finder that gives this package's modules for them.

Only the standard library is imported here, so that a process which never imports apex pays
nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

from torchamp.compat import _gone

#: The replacement of each top-level name; submodules replace submodules of the same name.
ROOTS = {
    "apex": "torchamp.compat.apex",
    "amp_C": "torchamp.compat.amp_C",
    "apex_C": "torchamp.compat.apex_C",
}


def target_of(name: str) -> str:
    """The replacement of apex's module `name`, which may not exist."""
    root, dot, rest = name.partition(".")
    return ROOTS[root] + dot + rest


def install() -> None:
    """Makes apex's names importable in this process, if they are not yet."""
    if any(type(finder).__name__ == ApexFinder.__name__ for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, ApexFinder())
    for name, module in list(sys.modules.items()):
        if _find_target(name) is not None and not is_ours(module):
            complete(module, _import_target(name))


class ApexFinder(importlib.abc.MetaPathFinder):
    """Finds the real module where there is one, and completes it; else the module that replaces
    it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        real = self._find_real(name, path) if name.partition(".")[0] in ROOTS else None
        if real is None:
            _refuse_gone(name)
            return _alias_spec(name)
        if _find_target(name) is not None:
            real.loader = CompletingLoader(real.loader)
        return real

    def _find_real(
        self, name: str, path: Sequence[str] | None
    ) -> importlib.machinery.ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        if parent is not None and is_ours(parent):
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path) if finder is not self else None
            if spec is not None and spec.origin is not None:  # without: a folder of that name
                return spec
        return None

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """Answers importlib.metadata's question for apex's version where no real apex does."""
        if context is not None and context.name == "apex" and not self._find_real("apex", None):
            yield AliasDistribution()


class AliasLoader(importlib.abc.Loader):
    """Loads the module that replaces a name, the same object under both names."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _import_target(spec.name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec


class CompletingLoader(importlib.abc.Loader):
    """Loads a real module of apex's, then adds what it lacks."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self._real
        self._real.exec_module(module)
        complete(module, _import_target(module.__name__))


class AliasDistribution(importlib.metadata.Distribution):
    """The metadata of apex for importlib.metadata."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        version = _import_target("apex").__version__
        return f"Metadata-Version: 2.1\nName: apex\nVersion: {version}\nSummary: torchamp's alias\n"

    def locate_file(self, path: str) -> str:
        return path


def complete(real: ModuleType, ours: ModuleType) -> None:
    """Adds the public names of `ours` that `real` lacks; a submodule only where no real one is."""
    for name in getattr(ours, "__all__", ()):
        if hasattr(real, name):
            continue
        value = getattr(ours, name)
        if isinstance(value, ModuleType):
            with contextlib.suppress(ImportError):  # a real one that lacks its extension
                importlib.import_module(f"{real.__name__}.{name}")
        else:
            setattr(real, name, value)


def is_ours(module: ModuleType) -> bool:
    """Whether the module replaces one of apex's."""
    return module.__name__.startswith(tuple(ROOTS.values()))


def _refuse_gone(name: str) -> None:
    """Raises ModuleNotFoundError for what there is no replacement of. `name` is also that of a
    replacement: `from apex import fused_dense` asks for that, whose __name__ apex's module has."""
    for root, target in ROOTS.items():
        if name.startswith(f"{target}."):
            name = root + name[len(target) :]
    message = _gone.message_of(name)
    if message is not None:
        raise ModuleNotFoundError(message, name=name)


def _alias_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    found = _find_target(name)
    if found is None:
        return None
    spec = importlib.machinery.ModuleSpec(name, AliasLoader(), origin=found.origin)
    spec.submodule_search_locations = found.submodule_search_locations
    spec.has_location = True
    return spec


def _find_target(name: str) -> importlib.machinery.ModuleSpec | None:
    if name.partition(".")[0] not in ROOTS:
        return None
    try:
        return importlib.util.find_spec(target_of(name))
    except ModuleNotFoundError:  # the parent is a module, not a package
        return None


def _import_target(name: str) -> ModuleType:
    return importlib.import_module(target_of(name))

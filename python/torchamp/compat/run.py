"""Runs a program of apex's under the alias: what `python -m torchamp.apex` does."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
from types import ModuleType

from torchamp.compat import alias, children

USAGE = """usage: python -m torchamp.apex script.py [argument ...]
       python -m torchamp.apex -m module [argument ...]

Runs a program that imports apex, unchanged, with torchamp instead of apex. An apex that is
installed keeps its own names; torchamp adds the missing ones.

  -m module   runs a module, as python's own -m
"""


def main(arguments: list[str]) -> int:
    """Does what the command line asks for; returns the exit status, unless the program exits."""
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    alias.install()
    if first == "-m" and len(arguments) > 1:
        return _run_module(arguments[1:])
    if first.startswith("-"):
        print(f"{USAGE}\npython -m torchamp.apex: unknown option {first}", file=sys.stderr)
        return 2
    return _run_script(arguments)


def _run_module(argv: list[str]) -> int:
    if not _is_found(argv[0]):
        print(f"python -m torchamp.apex: no module named {argv[0]!r}", file=sys.stderr)
        return 2
    _alias_in_children()
    sys.argv = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    return 0


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that it would be in
        return False


def _run_script(argv: list[str]) -> int:
    path = os.path.abspath(argv[0])
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        print(f"python -m torchamp.apex: cannot open {argv[0]!r}: {error}", file=sys.stderr)
        return 2
    _alias_in_children()
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(path)
    exec(compile(source, path, "exec", dont_inherit=True), _new_main(path).__dict__)
    return 0


def _new_main(path: str) -> ModuleType:
    """An empty `__main__`, as Python makes it for a script."""
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = module
    return module


def _alias_in_children() -> None:
    """Lets processes that the program starts import apex too: workers, launchers' ranks."""
    folders = [children.__path__[0], os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))

"""Python runs this when a child of `python -m torchamp.apex` starts: apex's names are importable
there too. Then the sitecustomize runs that this one hides, if there is one."""

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


def _run(spec: Any) -> Any:
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_hidden(folder: str) -> None:
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    hidden = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if hidden is not None:
        _run(hidden)


_folder = os.path.dirname(os.path.abspath(__file__))
_alias = os.path.join(os.path.dirname(_folder), "alias.py")
_run(importlib.util.spec_from_file_location("torchamp_alias", _alias)).install()
_run_hidden(_folder)

"""An editable installation: Python files take effect at once, C++ sources only once compiled."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterator

from torchamp._logging import log


def warn_if_outdated(package: pathlib.Path) -> None:
    """Logs a warning if C++ sources of an editable installation have changed since they were
    compiled. Does nothing in other installations, which have no stamp."""
    stamp = package / "_editable.stamp"
    if not stamp.is_file():
        return
    root, compiled = package.parent.parent, stamp.stat().st_mtime
    changed = [path for path in _sources(root) if path.stat().st_mtime > compiled]
    if changed:
        others = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
        log(
            logging.WARNING,
            f"{changed[0].relative_to(root)}{others} changed after torchamp was compiled, and this "
            f"process uses what was compiled before. To compile: pip install -e {root}",
        )


def _sources(root: pathlib.Path) -> Iterator[pathlib.Path]:
    yield root / "CMakeLists.txt"
    for folder in ("cmake", "csrc", "include"):
        yield from (path for path in sorted((root / folder).rglob("*")) if path.is_file())

"""Finds the torch that this Python would import, without importing it.

Importing torch takes seconds, may print to stdout, and fails under pip's build isolation, where the
target environment is not on `sys.path`. As a script, prints torch's folder, or an empty line.
"""

import importlib.util
import pathlib
import site
import sys
from typing import Optional


def site_folders() -> list[str]:
    """Returns this environment's site-packages folders, including those hidden by build
    isolation."""
    prefixes = [sys.prefix]
    config = pathlib.Path(sys.prefix, "pyvenv.cfg")
    inherits = True
    if config.is_file():
        inherits = "include-system-site-packages = true" in config.read_text().lower()
    if inherits:
        prefixes.append(sys.base_prefix)
    folders = site.getsitepackages(prefixes)
    if inherits:
        folders.append(site.getusersitepackages())
    return [entry for folder in folders for entry in [folder, *_pth_folders(folder)]]


def _pth_folders(folder: str) -> list[str]:
    """Returns the folders that a site-packages' .pth files add to sys.path."""
    lines = [
        line
        for file in sorted(pathlib.Path(folder).glob("*.pth"))
        for line in file.read_text(errors="replace").splitlines()
    ]
    paths = [
        pathlib.Path(folder, line.strip())
        for line in lines
        if line.strip() and not line.startswith(("#", "import"))
    ]
    return [str(path) for path in paths if path.is_dir()]


def find_torch() -> Optional[pathlib.Path]:
    """Returns torch's folder, or None if this Python has no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return pathlib.Path(spec.origin).parent
    for folder in site_folders():
        if pathlib.Path(folder, "torch", "version.py").is_file():
            return pathlib.Path(folder, "torch")
    return None


def read_version(torch: pathlib.Path) -> str:
    """Returns the version of the torch in a folder, as "2.13.0+cpu"."""
    for line in (torch / "version.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split("=", 1)[1].strip().strip("'\"")
    raise ValueError(f"{torch / 'version.py'}: expected a line that sets __version__")


if __name__ == "__main__":
    print(find_torch() or "")

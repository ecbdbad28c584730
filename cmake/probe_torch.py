"""Prints the folder of the torch that this Python would import, without importing it.

Importing torch takes seconds, may print on stdout, and fails under pip's build isolation, where
only `sysconfig` still knows the site-packages of the environment that is being installed into.
"""

import importlib.util
import pathlib
import sysconfig


def find_torch() -> str:
    """Returns torch's folder, or an empty string when this Python has no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return str(pathlib.Path(spec.origin).parent)
    for scheme in ("purelib", "platlib"):
        folder = pathlib.Path(sysconfig.get_paths()[scheme]) / "torch"
        if (folder / "version.py").is_file():
            return str(folder)
    return ""


if __name__ == "__main__":
    print(find_torch())

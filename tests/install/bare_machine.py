"""A simulated machine with only a compiler and make on its PATH."""

import os
import pathlib
import shutil
import subprocess
import zipfile

from installed import ROOT

TOOLS = "as ar c++ cat date dirname find g++ grep ld make mkdir nproc ranlib rm sed sh touch uname"

#: A fake apt-get, which creates the compiler when it is installed.
APT_GET = """#!/bin/sh
echo "$*" >> {folder}/apt-get.calls
case "$*" in *g++*) ln -sf {compiler} {folder}/bin/c++;; esac
exit {status}
"""


class BareMachine:
    """Its PATH is `folder`/bin. ``user`` is what ``id -u`` prints."""

    def __init__(self, folder: pathlib.Path, user: int = 0, apt_status: int = 0) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for tool in TOOLS.split():
            (folder / "bin" / tool).symlink_to(shutil.which(tool))
        self.add("id", f"#!/bin/sh\necho {user}\n")
        compiler = shutil.which("c++")
        self.add("apt-get", APT_GET.format(folder=folder, compiler=compiler, status=apt_status))

    def add(self, name: str, script: str) -> None:
        """Adds a program to its PATH."""
        program = self.folder / "bin" / name
        program.write_text(script)
        program.chmod(0o755)

    def add_real(self, name: str) -> None:
        """Adds a program of the real machine to its PATH."""
        (self.folder / "bin" / name).symlink_to(shutil.which(name))

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / "bin" / name).unlink()

    def run(self, *command: object, **environment: object) -> subprocess.CompletedProcess:
        """Runs a command in a checkout on the bare machine."""
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.checkout(),
            capture_output=True,
            text=True,
            env={
                "PATH": str(self.folder / "bin"),
                "HOME": str(self.folder),
                "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
                **{name: str(value) for name, value in environment.items()},
            },
        )

    def checkout(self) -> pathlib.Path:
        """A copy of the files that set up a checkout, in a folder whose name has a space."""
        copy = self.folder / "my checkout"
        if not copy.is_dir():
            for name in ("build_tools", "cmake"):
                shutil.copytree(ROOT / name, copy / name)
            for name in ("CMakeLists.txt", "Makefile", "pyproject.toml", "setup.py"):
                shutil.copy(ROOT / name, copy)
            for name in ("csrc", "include", "python"):
                (copy / name).symlink_to(ROOT / name)
        return copy

    @property
    def apt_calls(self) -> list[str]:
        """The arguments of apt-get's calls."""
        calls = self.folder / "apt-get.calls"
        return calls.read_text().splitlines() if calls.is_file() else []


def write_wheel(folder: pathlib.Path, name: str) -> None:
    """Writes an empty package that pip treats as the newest of this name."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-999.dist-info"
    with zipfile.ZipFile(folder / f"{name}-999-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 999\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")

"""Does what README tells a newcomer, with an empty home, and prints each command's time.

python build_tools/first_minutes.py               # takes the newest torch
python build_tools/first_minutes.py torch==2.13.0

Clones the commit that is checked out. Needs the network, and what README says that a build needs.
Ends at the first command that fails, with its output.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
URL = "https://github.com/torchamp/torchamp"
#: How a newcomer begins the CMakeLists.txt that README goes on with.
PROJECT = "cmake_minimum_required(VERSION 3.18...4.0)\nproject(app)\nadd_executable(app main.cpp)\n"


def blocks(page: str, language: str) -> list[str]:
    """The page's code in a language; "" are commands, and what they print."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


class Newcomer:
    """A shell without any settings, and a Python of its own, in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        path = f"{folder / 'python' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        # How pip reaches its index is the machine's, and no setting.
        self.environment = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
        self.environment |= {"HOME": str(self.home), "PATH": path}

    def run(self, command: str, folder: pathlib.Path | None = None) -> None:
        """Runs a command, and prints how long it took."""
        begin = time.monotonic()
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=folder or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(f"{time.monotonic() - begin:7.1f} s  {command.strip()}", flush=True)
        if done.returncode:
            sys.exit(f"{done.stdout}\nfirst_minutes: failed with status {done.returncode}")


def first_minutes(newcomer: Newcomer, torch: str) -> None:
    (install,) = (code for code in blocks(README, "") if URL in code)
    clone, *commands = install.replace(URL, f"{shlex.quote(str(ROOT))} torchamp").splitlines()
    newcomer.run(f"{shlex.quote(sys.executable)} -m venv python")
    newcomer.run(f"pip install {shlex.quote(torch)}")
    newcomer.run(clone)
    checkout = newcomer.folder / "torchamp"
    for command in commands:
        newcomer.run(command.partition(" #")[0], checkout)
    newcomer.run("torchamp-doctor")

    (newcomer.folder / "readme.py").write_text("".join(blocks(README, "python")))
    newcomer.run("python readme.py")
    app = newcomer.folder / "app"
    app.mkdir()
    (app / "main.cpp").write_text("".join(blocks(README, "cpp")))
    (app / "CMakeLists.txt").write_text(PROJECT + "".join(blocks(README, "cmake")))
    newcomer.run("pip install cmake")
    newcomer.run("cmake -DCMAKE_PREFIX_PATH=$(python -m torchamp --cmakedir) -B build", app)
    newcomer.run("cmake --build build", app)
    newcomer.run("build/app", app)

    examples = checkout / "examples" / "python"
    (examples / "tutorial.py").write_text("".join(blocks(TUTORIAL, "python")))
    newcomer.run("pip install numpy")
    newcomer.run("python tutorial.py", examples)
    newcomer.run("make demo", checkout)


def main() -> None:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        first_minutes(Newcomer(pathlib.Path(folder)), *(sys.argv[1:] or ["torch"]))
    print(f"{time.monotonic() - begin:7.1f} s  in all")


if __name__ == "__main__":
    main()

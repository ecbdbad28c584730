"""Writes tests/old_checkpoints/885942b anew, in a clone of that commit into which this folder and
the two old_run of tests/*/support are copied:

make setup && .venv/bin/python tests/old_checkpoints/make.py

The `extra` of each file has the model after two further steps, as "after": a float32 tensor of the
values in its state dict, in the order of their names.
"""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python" / "support"))

import old_run  # noqa: E402

import torchamp  # noqa: E402
from torchamp import amp  # noqa: E402


def write(level: str, name: str, path: pathlib.Path) -> None:
    further = old_run.started(level, name, lr=0.125)
    old_run.train_from_the_start(*further)
    old_run.train(*further, old_run.STEPS, old_run.STEPS + old_run.FURTHER_STEPS)
    run = old_run.started(level, name, lr=0.125)
    old_run.train_from_the_start(*run)
    amp.save(*run, path, {"after": old_run.values_of(further[0].state_dict())})


def write_by_cpp(folder: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as build:
        prefix = f"-DCMAKE_PREFIX_PATH={torchamp.cmake_prefix_path}"
        subprocess.run(["cmake", "-S", HERE, "-B", build, prefix], check=True)
        subprocess.run(["cmake", "--build", build], check=True)
        subprocess.run([f"{build}/make", folder], check=True)


def main() -> None:
    for language in old_run.LANGUAGES:
        (old_run.FILES / language).mkdir(parents=True, exist_ok=True)
    for level in old_run.LEVELS:
        for name in old_run.OPTIONS:
            write(level, name, old_run.file_of("python", level, name))
    write_by_cpp(old_run.FILES / "cpp")


main()

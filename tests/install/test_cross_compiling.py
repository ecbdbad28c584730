"""What CMake settles when it compiles for ARM elsewhere: it is told of a processor, with this
machine's compiler, and nothing is compiled."""

import pathlib
import sys
import sysconfig

import pytest
from installed import ROOT, failure, run

#: Bytes 18 and 19 of an ELF file.
MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}


def torch_for(processor: str, folder: pathlib.Path) -> pathlib.Path:
    """A folder that looks like torch's."""
    torch = folder / "torch"
    for name in ("libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libc10.so"):
        (torch / "lib").mkdir(parents=True, exist_ok=True)
        header = b"\x7fELF".ljust(18, b"\0") + MACHINES[processor].to_bytes(2, "little")
        (torch / "lib" / name).write_bytes(header)
    (torch / "include" / "ATen" / "core").mkdir(parents=True)
    (torch / "include" / "ATen" / "core" / "Tensor.h").touch()
    (torch / "include" / "torch" / "csrc" / "api" / "include").mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.9.1+cpu'\n")
    return torch


def configured(processor: str, torch: pathlib.Path, *options: str) -> list[object]:
    """The command that configures torchamp for ARM, in a folder beside torch."""
    return [
        *("cmake", "-S", ROOT, "-B", torch.parent / "build", f"-DTORCHAMP_TORCH_ROOT={torch}"),
        *("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={processor}"),
        *("-DTORCHAMP_USE_CUDA=OFF", "-DTORCHAMP_BUILD_TESTS=OFF", *options),
    ]


def test_a_torch_for_another_processor_is_refused(tmp_path: pathlib.Path) -> None:
    torch = torch_for("x86_64", tmp_path)
    said = " ".join(failure(*configured("aarch64", torch)).split())
    expected = f"torchamp: expected a torch for aarch64, got one for x86_64 in {torch}; "
    assert f"{expected}-DTORCHAMP_TORCH_ROOT=<folder> chooses another" in said


@pytest.mark.parametrize("chosen", [None, "cpython-399t-aarch64-linux-gnu"])
def test_the_module_is_named_for_the_other_processor(chosen: str, tmp_path: pathlib.Path) -> None:
    options = [f"-DPython3_INCLUDE_DIR={sysconfig.get_paths()['include']}"]
    if chosen is not None:
        options.append(f"-DTORCHAMP_PYTHON_SOABI={chosen}")
    torch = torch_for("aarch64", tmp_path)
    run(*configured("aarch64", torch, *options, "-GUnix Makefiles"))
    major, minor = sys.version_info[:2]
    name = chosen or f"cpython-{major}{minor}-aarch64-linux-gnu"
    rules = tmp_path / "build" / "CMakeFiles" / "torchamp_python.dir" / "link.txt"
    assert f"/_C.{name}.so " in rules.read_text()


def test_headers_of_a_python_are_asked_for(tmp_path: pathlib.Path) -> None:
    torch = torch_for("aarch64", tmp_path)
    nowhere = tmp_path / "nowhere"
    said = failure(*configured("aarch64", torch, f"-DPython3_INCLUDE_DIR={nowhere}"))
    assert (
        "torchamp: expected -DPython3_INCLUDE_DIR=<folder> with the Python.h of a Python for "
        f'aarch64, got "{nowhere}"; -DTORCHAMP_BUILD_PYTHON=OFF builds the library alone'
    ) in " ".join(said.split())

"""A user's C++ project uses torchamp by find_package, by add_subdirectory and from the wheel."""

import os
import pathlib
import shlex
import shutil
from typing import Callable

import pytest
import torch
from installed import CONSUMER, ROOT, failure, run

EXPECTED = f"torch {torch.__version__}\nmaster_grad 2\nfound_inf 0\n"


@pytest.mark.soak
def test_find_package_in_a_moved_prefix(prefix: pathlib.Path, build_consumer: Callable) -> None:
    assert build_consumer(f"-DCMAKE_PREFIX_PATH={prefix}") == EXPECTED


@pytest.mark.soak
def test_a_torch_in_a_folder_with_a_space(
    prefix: pathlib.Path, build_consumer: Callable, tmp_path: pathlib.Path
) -> None:
    there = tmp_path / "my torch"
    there.symlink_to(pathlib.Path(torch.__file__).parent)
    options = (f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTORCHAMP_TORCH_ROOT={there}")
    assert build_consumer(*options) == EXPECTED


@pytest.mark.soak
def test_find_package_in_the_wheel(wheel_site: pathlib.Path, build_consumer: Callable) -> None:
    found = wheel_site / "torchamp" / "share" / "cmake"
    assert build_consumer(f"-DCMAKE_PREFIX_PATH={found}") == EXPECTED


@pytest.mark.soak
def test_add_subdirectory(build_consumer: Callable) -> None:
    options = (f"-DTORCHAMP_SOURCE={ROOT}", "-DTORCHAMP_CUDA_ARCHS=90")
    assert build_consumer(*options) == EXPECTED


def test_add_subdirectory_uses_nvcc_only_if_asked_to(tmp_path: pathlib.Path) -> None:
    configure = ("cmake", "-S", CONSUMER, "-B", tmp_path, f"-DTORCHAMP_SOURCE={ROOT}")
    assert "no fatbin (TORCHAMP_USE_CUDA is OFF)" in run(*configure)
    assert "TORCHAMP_USE_CUDA is OFF" not in run(*configure, "-DTORCHAMP_USE_CUDA=AUTO")


def test_find_package_refuses_another_torch(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = fake_torch(tmp_path / "other_torch", version="2.1.0")
    options = (f"-DCMAKE_PREFIX_PATH={prefix}", f"-DTORCHAMP_TORCH_ROOT={other}")
    said = failure("cmake", "-S", CONSUMER, "-B", tmp_path / "build", *options)
    message = " ".join(said.split())
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"was built for torch {minor}, but this project uses torch 2.1" in message
    assert "Build torchamp again for this torch" in message


@pytest.mark.soak
def test_libtorch_and_cmake_without_python(
    prefix: pathlib.Path, tmp_path: pathlib.Path, build_consumer: Callable, no_python: pathlib.Path
) -> None:
    libtorch = libtorch_archive(tmp_path / "libtorch")
    assert build_consumer(f"-DCMAKE_PREFIX_PATH={prefix};{libtorch}", python=None) == EXPECTED
    assert not no_python.exists()


def test_torchamp_itself_configures_without_python(
    tmp_path: pathlib.Path, no_python: pathlib.Path
) -> None:
    libtorch = libtorch_archive(tmp_path / "libtorch")
    options = (f"-DCMAKE_PREFIX_PATH={libtorch}", "-DTORCHAMP_BUILD_TESTS=OFF")
    said = run("cmake", "-S", ROOT, "-B", tmp_path / "build", *options)
    assert f"torch {torch.__version__} in {libtorch}" in said
    assert "torchamp_python" not in run("cmake", "--build", tmp_path / "build", "--target", "help")
    assert not no_python.exists()


@pytest.fixture
def no_python(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Replaces every Python by programs that fail; returns the file that records their calls."""
    folder, called = tmp_path / "no_python", tmp_path / "python_was_called"
    folder.mkdir()
    for name in ("python", "python3"):
        (folder / name).write_text(f"#!/bin/sh\necho $0 $* >> {called}\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return called


def libtorch_archive(folder: pathlib.Path) -> pathlib.Path:
    """Creates a folder like an unpacked LibTorch archive from this torch's files, without Python's
    part."""
    real = pathlib.Path(torch.__file__).parent
    (folder / "lib").mkdir(parents=True)
    for file in (real / "lib").iterdir():
        if "python" not in file.name:
            (folder / "lib" / file.name).symlink_to(file)
    for name in ("include", "share"):
        (folder / name).symlink_to(real / name)
    (folder / "build-version").write_text(torch.__version__ + "\n")
    for beside in ("nvidia", "cusparselt"):  # where a wheel's libraries look for CUDA's
        if (real.parent / beside).exists():
            (folder.parent / beside).symlink_to(real.parent / beside)
    return folder


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_pkg_config(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    flags = run("pkg-config", "--cflags", "--libs", prefix / "lib/pkgconfig/torchamp.pc")
    program = tmp_path / "consumer"
    assert "-std=" not in flags  # it would take a newer standard back
    standard = "-std=c++20" if int(torch.__version__.split(".")[1]) >= 14 else "-std=c++17"
    run("c++", standard, CONSUMER / "main.cpp", "-o", program, *shlex.split(flags))
    assert run(program) == EXPECTED


def fake_torch(folder: pathlib.Path, version: str) -> pathlib.Path:
    """Creates a folder that looks like LibTorch of a given version, with this torch's files."""
    real = pathlib.Path(torch.__file__).parent
    folder.mkdir()
    for name in ("include", "lib"):
        (folder / name).symlink_to(real / name)
    (folder / "build-version").write_text(version + "\n")
    return folder

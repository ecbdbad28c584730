"""A user's C++ project gets torchamp by find_package, by add_subdirectory and from the wheel."""

import pathlib
import shlex
import shutil
import subprocess
from typing import Callable

import pytest
import torch
from conftest import CONSUMER, ROOT, run

EXPECTED = f"torch {torch.__version__}\nmaster_grad 2\nfound_inf 0\n"


def test_find_package_in_a_moved_prefix(prefix: pathlib.Path, build_consumer: Callable) -> None:
    assert build_consumer(f"-DCMAKE_PREFIX_PATH={prefix}") == EXPECTED


def test_find_package_in_the_wheel(wheel_site: pathlib.Path, build_consumer: Callable) -> None:
    found = wheel_site / "torchamp" / "share" / "cmake"
    assert build_consumer(f"-DCMAKE_PREFIX_PATH={found}") == EXPECTED


def test_add_subdirectory(build_consumer: Callable) -> None:
    assert build_consumer(f"-DTORCHAMP_SOURCE={ROOT}") == EXPECTED


def test_find_package_refuses_another_torch(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = fake_torch(tmp_path / "other_torch", version="2.1.0")
    done = subprocess.run(
        [
            "cmake",
            "-S",
            str(CONSUMER),
            "-B",
            str(tmp_path / "build"),
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DTORCHAMP_TORCH_ROOT={other}",
        ],
        capture_output=True,
        text=True,
    )
    message = " ".join(done.stderr.split())
    minor = ".".join(torch.__version__.split(".")[:2])
    assert done.returncode != 0
    assert f"was built for torch {minor}, but this project uses torch 2.1" in message
    assert "Build torchamp again for this torch" in message


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_pkg_config(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    flags = run("pkg-config", "--cflags", "--libs", prefix / "lib/pkgconfig/torchamp.pc")
    program = tmp_path / "consumer"
    run("c++", CONSUMER / "main.cpp", "-o", program, *shlex.split(flags))
    assert run(program) == EXPECTED


def fake_torch(folder: pathlib.Path, version: str) -> pathlib.Path:
    """Makes a folder that looks like LibTorch of a version, with this torch's files in it."""
    real = pathlib.Path(torch.__file__).parent
    folder.mkdir()
    for name in ("include", "lib"):
        (folder / name).symlink_to(real / name)
    (folder / "build-version").write_text(version + "\n")
    return folder

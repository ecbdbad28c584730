"""The README's two commands set themselves up on a bare machine."""

import hashlib
import pathlib
import re
import subprocess
import sys
import tarfile

import pytest
import torch
from bare_machine import BareMachine, write_wheel
from installed import ROOT

APT_INSTALL = "install -y -qq --no-install-recommends"
PIP_INSTALLS = ("cmake", "ninja", "pytest_xdist", "pytest", "numpy", "matplotlib")
MODULE = ROOT / "cmake" / "TorchampGoogleTest.cmake"


def set_up(machine: BareMachine, **environment: object) -> subprocess.CompletedProcess:
    """Creates .venv, as `make demo` and `make test` do first, with this Python's torch and a pip
    that knows a few empty packages."""
    wheels = machine.folder / "wheels"
    for name in PIP_INSTALLS:
        write_wheel(wheels, name)
    pip = {"PIP_NO_INDEX": 1, "PIP_FIND_LINKS": wheels, "PIP_CONFIG_FILE": "/dev/null"}
    command = ("make", ".venv/.environment", f"PYTHON={sys.executable}")
    return machine.run(*command, **pip, **environment)


def installed_in(machine: BareMachine) -> set[str]:
    site = machine.checkout().glob(".venv/lib/python*/site-packages/*-999.dist-info")
    return {path.name for path in site}


@pytest.mark.soak
def test_set_up_gets_what_is_missing(tmp_path: pathlib.Path) -> None:
    machine = BareMachine(tmp_path)
    machine.remove("c++", "g++")
    done = set_up(machine)
    assert done.returncode == 0, done.stderr
    assert machine.apt_calls == ["update -qq", f"{APT_INSTALL} g++"]
    assert "torchamp: installing Debian's g++" in done.stderr
    assert "torchamp: installing cmake" in done.stdout
    assert torch.__version__ in (machine.checkout() / ".venv" / ".environment").read_text()
    assert {"cmake-999.dist-info", "ninja-999.dist-info"} <= installed_in(machine)


@pytest.mark.soak
def test_set_up_gets_programs_that_only_another_environment_has(tmp_path: pathlib.Path) -> None:
    """pip sees their packages, but they are not on PATH."""
    for name in ("cmake", "ninja"):
        info = tmp_path / "inherited" / f"{name}-4.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.0\n")
    machine = BareMachine(tmp_path)
    done = set_up(machine, PYTHONPATH=tmp_path / "inherited")
    assert done.returncode == 0, done.stderr
    assert {"cmake-999.dist-info", "ninja-999.dist-info"} <= installed_in(machine)


def test_set_up_asks_who_may_not_install(tmp_path: pathlib.Path) -> None:
    machine = BareMachine(tmp_path, user=1000)
    machine.remove("c++", "g++")
    done = set_up(machine)
    assert done.returncode != 0
    assert (
        "torchamp: this machine lacks: g++. On Debian or Ubuntu:\n    sudo apt-get install -y g++\n"
    ) in done.stderr
    assert machine.apt_calls == []


@pytest.mark.parametrize("command", ["demo", "test"])
def test_both_commands_set_up_first(tmp_path: pathlib.Path, command: str) -> None:
    machine = BareMachine(tmp_path)
    planned = machine.run("make", "--dry-run", command, f"PYTHON={sys.executable}").stdout
    assert planned.index("build_tools/make_venv.sh") < planned.index("pip install")
    assert "torchamp: making .venv" not in planned


def test_make_takes_the_python_of_venv_wherever_the_checkout_is(tmp_path: pathlib.Path) -> None:
    machine = BareMachine(tmp_path)
    checkout = machine.checkout()
    assert " " in checkout.name
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$TORCHAMP_BUILD_DIR: $*"\n')
    python.chmod(0o755)
    (checkout / ".venv" / ".environment").touch()
    for target, said in {
        "doctor": ": python/torchamp/doctor.py\n",
        "setup": f"\n{checkout}/build: -m pip install ",
    }.items():
        done = machine.run("make", target, "PYTHON=false")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


@pytest.mark.parametrize(
    ("user", "apt_status", "found"), [(0, 0, True), (0, 100, False), (1000, 0, False)]
)
def test_googletest_is_debians(
    tmp_path: pathlib.Path, user: int, apt_status: int, found: bool
) -> None:
    """If it is unavailable, CMake continues to search."""
    machine = BareMachine(tmp_path, user, apt_status)
    folder = tmp_path / "googletest"
    done = machine.run("build_tools/find_googletest.sh", TORCHAMP_GTEST_DEBIAN_DIR=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (f"{folder}\n" if found else "")
    assert ("torchamp: installing Debian's googletest" in done.stderr) == (user == 0)
    assert bool(machine.apt_calls) == (user == 0)


def test_googletest_that_is_here_is_taken(tmp_path: pathlib.Path) -> None:
    machine = BareMachine(tmp_path)
    here = machine.run("build_tools/find_googletest.sh", TORCHAMP_GTEST_DEBIAN_DIR=tmp_path)
    given = machine.run("build_tools/find_googletest.sh", "/given")
    assert (here.stdout, given.stdout) == (f"{tmp_path}\n", "/given\n")
    assert machine.apt_calls == []


def fake_googletest(folder: pathlib.Path) -> pathlib.Path:
    """Creates a folder with empty versions of GoogleTest's targets."""
    folder.mkdir(parents=True)
    (folder / "empty.cpp").touch()
    (folder / "CMakeLists.txt").write_text(
        "add_library(gtest STATIC empty.cpp)\nadd_library(gtest_main STATIC empty.cpp)\n"
    )
    return folder


def configure_without_googletest(
    folder: pathlib.Path, *options: object
) -> subprocess.CompletedProcess:
    """Configures an empty project that includes the module, without an installed GoogleTest."""
    folder.joinpath("CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18...4.0)\nproject(empty LANGUAGES CXX)\n"
        f"include({MODULE})\nget_target_property(sources GTest::gtest SOURCE_DIR)\n"
        'message(STATUS "GoogleTest is in ${sources}")\n'
    )
    command = ["cmake", "-S", folder, "-B", folder / "build", "-DTORCHAMP_GTEST_DEBIAN_DIR=/none"]
    command += ["-DTORCHAMP_TORCH_CXX11_ABI=0", "-DTORCHAMP_TORCH_OPENMP=/none", *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def archive_of(folder: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Packs a folder; returns the archive and its SHA-256."""
    archive = folder.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, folder.name)
    return archive, hashlib.sha256(archive.read_bytes()).hexdigest()


def test_googletest_is_downloaded(tmp_path: pathlib.Path) -> None:
    archive, sha256 = archive_of(fake_googletest(tmp_path / "googletest-1.14.0"))
    download = ("-DTORCHAMP_ALLOW_DOWNLOAD=ON", f"-DTORCHAMP_GTEST_URL=file://{archive}")
    done = configure_without_googletest(tmp_path, *download, f"-DTORCHAMP_GTEST_SHA256={sha256}")
    assert done.returncode == 0, done.stderr
    assert f"torchamp: downloading GoogleTest 1.14.0 from file://{archive}" in done.stdout
    assert f"GoogleTest is in {tmp_path}/build/googletest-release/googletest-1.14.0" in done.stdout


def test_another_download_is_refused(tmp_path: pathlib.Path) -> None:
    archive, sha256 = archive_of(fake_googletest(tmp_path / "googletest-1.14.0"))
    download = ("-DTORCHAMP_ALLOW_DOWNLOAD=ON", f"-DTORCHAMP_GTEST_URL=file://{archive}")
    done = configure_without_googletest(tmp_path, *download)
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "expected a file with the SHA-256 8ad598c73ad796e0" in message
    assert f"got one with {sha256}. the C++ tests need GoogleTest: sudo apt-get" in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "or allow a download with -DTORCHAMP_ALLOW_DOWNLOAD=ON"),
        (
            ("-DTORCHAMP_ALLOW_DOWNLOAD=ON", "-DTORCHAMP_GTEST_URL=file:///none.tar.gz"),
            "torchamp: file:///none.tar.gz: ",
        ),
    ],
)
def test_missing_googletest_is_reported(
    tmp_path: pathlib.Path, options: tuple, reason: str
) -> None:
    done = configure_without_googletest(tmp_path, *options)
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert reason in message
    assert "the C++ tests need GoogleTest: sudo apt-get install -y googletest, or" in message


def test_without_optional_tools_their_tests_are_skipped(tmp_path: pathlib.Path) -> None:
    machine = BareMachine(tmp_path)
    machine.add_real("cmake")
    done = machine.run(
        *("cmake", "-S", ROOT, "-B", tmp_path / "build", "-DTORCHAMP_BUILD_TESTS=ON"),
        "-DTORCHAMP_SOAK_TESTS=ON",
        "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
        "-DTORCHAMP_USE_CUDA=OFF",
        f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DTORCHAMP_GTEST_SOURCE_DIR={fake_googletest(tmp_path / 'googletest')}",
    )
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        ["ctest", "-R", "^(ptx_nvrtc_90|test_clang_digits|test_compile_by_the_other|nvcc)"],
        cwd=tmp_path / "build",
        capture_output=True,
        text=True,
    ).stdout
    assert said.count("***Skipped") == 4, said


PARTS = {"cmake": "build", "ctest": "cpp_tests", "python": "python_tests"}


@pytest.mark.parametrize("broken", [None, *PARTS])
def test_the_last_line_reports_every_part(tmp_path: pathlib.Path, broken: str) -> None:
    machine = BareMachine(tmp_path)
    for program in PARTS:
        machine.add(program, f"#!/bin/sh\nexit {int(program == broken)}\n")
    (machine.checkout() / "build").mkdir()
    done = machine.run("build_tools/run_tests.sh", GTEST_SOURCE="/given", MAX_JOBS=1)
    parts = ["build"] if broken == "cmake" else ["build", r"C\+\+ tests", "Python tests"]
    times = ", ".join(rf"{part} \d+ s" for part in parts)
    verdict = f"FAILED: {PARTS[broken]}" if broken else "all passed"
    assert re.fullmatch(f"torchamp: {times}: {verdict}", done.stdout.splitlines()[-1]), done.stdout
    assert (done.returncode != 0) == bool(broken)


def test_every_test_is_run_by_make_test_or_by_make_soak(tmp_path: pathlib.Path) -> None:
    machine = BareMachine(tmp_path)
    for program in PARTS:
        machine.add(program, '#!/bin/sh\necho "${0##*/} $*"\n')
    (machine.checkout() / "build").mkdir()
    test, soak = (
        machine.run("build_tools/run_tests.sh", *what, GTEST_SOURCE="/given", MAX_JOBS=1).stdout
        for what in ([], ["soak"])
    )
    assert "-DTORCHAMP_SOAK_TESTS=OFF" in test and "-DTORCHAMP_SOAK_TESTS=ON" in soak
    assert "ctest -LE soak " in test and "ctest -L soak " in soak
    assert "pytest -rs -m not soak --" in test and "pytest -rs -m soak --" in soak
    assert "tested_with.py record" in test and "tested_with.py" not in soak

"""The installed package: its files, its dependencies, and the torch that it requires."""

import pathlib
import re
import sys

import pytest
import torch
from installed import ROOT, failure, run

OWN_LIBRARIES = {
    "libtorchamp.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_python.so",
    "libc10.so",
}
SYSTEM_LIBRARY = re.compile(r"(libc|libm|libdl|libpthread|libgcc_s|libstdc\+\+|ld-linux-.*)\.so.*")
TORCH_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def needed_libraries(library: pathlib.Path) -> set:
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", library)))


@pytest.mark.parametrize("pattern", ["lib/libtorchamp.so", "_C.*.so"])
def test_nothing_of_cuda_or_openmp_is_linked(wheel_site: pathlib.Path, pattern: str) -> None:
    (library,) = (wheel_site / "torchamp").glob(pattern)
    others = {
        name
        for name in needed_libraries(library) - OWN_LIBRARIES
        if not SYSTEM_LIBRARY.fullmatch(name)
    }
    assert others == set()


def test_only_torchamps_names_are_shown(prefix: pathlib.Path) -> None:
    listed = run("nm", "-D", "-C", "--defined-only", prefix / "lib" / "libtorchamp.so")
    shown = [line.split(maxsplit=2)[2] for line in listed.splitlines()]
    own = re.compile(r"((typeinfo|typeinfo name|vtable) for )?torchamp::")
    assert any(name.startswith("torchamp::initialize") or "torchamp::Amp" in name for name in shown)
    assert [name for name in shown if not own.match(name)] == []


def test_prefix_and_wheel_hold_the_same_cpp_package(
    prefix: pathlib.Path, wheel_site: pathlib.Path
) -> None:
    root = wheel_site / "torchamp"
    in_prefix = {path.relative_to(prefix) for path in prefix.rglob("*") if path.is_file()}
    assert in_prefix
    assert {path for path in in_prefix if not (root / path).is_file()} == set()


def test_every_public_header_is_installed(prefix: pathlib.Path) -> None:
    headers = {path.name for path in (ROOT / "include" / "torchamp").glob("*.h")}
    assert {path.name for path in (prefix / "include" / "torchamp").glob("*.h")} == headers


def test_the_wheel_says_where_its_cmake_package_is(wheel_site: pathlib.Path) -> None:
    code = "import torchamp; print(torchamp.cmake_prefix_path)"
    said = run(sys.executable, "-c", code, folder=pathlib.Path("/"), PYTHONPATH=wheel_site)
    folder = pathlib.Path(said.strip())
    assert wheel_site in folder.parents
    assert (folder / "torchamp" / "torchampConfig.cmake").is_file()


def test_the_wheel_has_types(wheel_site: pathlib.Path) -> None:
    for name in ("py.typed", "_C/__init__.pyi", "_C/ops.pyi", "_built_for.pyi"):
        assert (wheel_site / "torchamp" / name).is_file()


@pytest.mark.soak
def test_the_wheel_runs_programs_of_apexs(wheel_site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    child = "import apex.parallel.LARC, amp_C; print(apex.__file__)"
    script.write_text(
        "import apex.amp, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    said = run(sys.executable, "-m", "torchamp.apex", script, PYTHONPATH=wheel_site)
    assert pathlib.Path(said.strip()).is_relative_to(wheel_site)


def test_import_with_another_torch_names_both_versions(wheel_site: pathlib.Path) -> None:
    code = "import torch; torch.__version__ = '2.1.0'; import torchamp"
    said = failure(sys.executable, "-c", code, folder=pathlib.Path("/"), PYTHONPATH=wheel_site)
    major, minor = TORCH_VERSION
    last_line = said.strip().splitlines()[-1]
    assert last_line.startswith(
        f"ImportError: torchamp was built for torch {major}.{minor}, but torch 2.1.0 is installed."
    )
    assert "pip install --force-reinstall" in last_line


@pytest.mark.soak
@pytest.mark.parametrize(
    "standard",
    [
        pytest.param(
            17,
            marks=pytest.mark.skipif(
                TORCH_VERSION >= (2, 14), reason="torch's own headers ask for C++20"
            ),
        ),
        20,
    ],
)
def test_public_headers_compile(
    prefix: pathlib.Path, tmp_path: pathlib.Path, standard: int
) -> None:
    """graphed.h where torch has CUDA and CUDA's headers are."""
    headers = {path.name for path in (prefix / "include" / "torchamp").glob("*.h")}
    cudas = pathlib.Path("/usr/local/cuda/include")
    if torch.version.cuda is None or not (cudas / "cuda_runtime_api.h").exists():
        headers.remove("graphed.h")
    source = tmp_path / "headers.cpp"
    source.write_text("".join(f"#include <torchamp/{name}>\n" for name in sorted(headers)))
    includes = pathlib.Path(torch.__file__).parent / "include"
    run(
        "c++",
        "-fsyntax-only",
        "-isystem",
        cudas,
        f"-std=c++{standard}",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        prefix / "include",
        "-isystem",
        includes,
        "-isystem",
        includes / "torch" / "csrc" / "api" / "include",
        source,
    )

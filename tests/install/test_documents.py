"""The C++ blocks of README and docs compile and run. Those of docs/libtorch.md have a test of their
own."""

import pathlib
import re

import torch
from installed import ROOT, launcher, run

PROGRAM = ROOT / "tests" / "install" / "documents"
PROJECT = """
cmake_minimum_required(VERSION 3.18...4.0)
project(documents LANGUAGES CXX)
find_package(torchamp REQUIRED)
add_executable(documents main.cpp)
target_link_libraries(documents PRIVATE torchamp::torchamp)
"""


def blocks() -> dict[str, str]:
    """By document and number."""
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name == "libtorch.md":
            continue
        code = re.findall(r"^```cpp\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
        found |= {f"{path.name}:{i}": block for i, block in enumerate(code, start=1)}
    return found


def program() -> str:
    text, includes = (PROGRAM / "main.cpp.in").read_text(), []
    named = re.findall(r"@([\w.]+:\d+)@", text)
    assert sorted(named) == sorted(blocks()), "main.cpp.in has each block once"
    for name, block in blocks().items():
        includes += re.findall(r"^#include .*\n", block, re.MULTILINE)
        text = text.replace(f"@{name}@", re.sub(r"^#include .*\n", "", block, flags=re.MULTILINE))
    return text.replace("@includes@", "".join(includes))


def test_blocks_compile_and_run(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "main.cpp").write_text(program())
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    where = f"-DCMAKE_PREFIX_PATH={prefix};{pathlib.Path(torch.__file__).parent}"
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", where, *launcher())
    run("cmake", "--build", tmp_path / "build")
    ran = run("sh", "-ec", f"cd '{tmp_path}' && build/documents")
    assert ran.splitlines()[-1] == "all blocks ran"

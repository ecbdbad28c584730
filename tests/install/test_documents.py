"""The C++ blocks of README and docs compile and run: README's as it stands, the others in one
program. Those of docs/libtorch.md have a test of their own."""

import pathlib
import re

import pytest
import torch
from installed import ROOT, launcher, run

PROGRAM = ROOT / "tests" / "install" / "documents"
PROJECT = """
cmake_minimum_required(VERSION 3.18...4.0)
project(documents LANGUAGES CXX)
find_package(torchamp REQUIRED)
foreach(program readme documents)
  add_executable(${program} ${program}.cpp)
  target_link_libraries(${program} PRIVATE torchamp::torchamp)
endforeach()
"""


DOCS = ROOT / "docs"
INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)
#: Around a block of the reference: what the page leaves out.
START = "Net net;\ntorch::optim::SGD sgd(net->parameters(), 0.1);\n"
INITIALIZED = """auto amped = amp::initialize(net, sgd, "O2");
auto& model = amped.model;
auto& optimizer = amped.optimizer;
const auto loss = loss_of(model(x));
"""


def blocks(*documents: pathlib.Path) -> dict[str, str]:
    """By document and number."""
    found = {}
    for path in documents:
        code = re.findall(r"^```cpp\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
        found |= {f"{path.name}:{i}": block for i, block in enumerate(code, start=1)}
    return found


def function_of(block: str) -> str:
    is_initialized = any(name in block for name in ("model", "optimizer", "loss,", "amped"))
    is_made = "initialize(" in block or "preflight(" in block
    begins = is_initialized and not is_made
    start = "" if "Net net" in block else START
    return f"[] {{\n{start}{INITIALIZED if begins else ''}{block}}}();\n"


def program() -> str:
    guides = [path for path in sorted(DOCS.glob("*.md")) if path.name != "libtorch.md"]
    named = blocks(*guides)
    text, includes = (PROGRAM / "main.cpp.in").read_text(), []
    names = re.findall(r"@([\w.]+:\d+)@", text)
    assert sorted(names) == sorted(named), "main.cpp.in has each block once"
    reference = blocks(*sorted((DOCS / "reference").glob("*.md")))
    assert reference
    functions = "".join(map(function_of, reference.values()))
    for name, block in {**named, "reference": functions}.items():
        includes += INCLUDE.findall(block)
        text = text.replace(f"@{name}@", INCLUDE.sub("", block))
    return text.replace("@includes@", "".join(includes))


@pytest.mark.soak
def test_blocks_compile_and_run(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (readme,) = blocks(ROOT / "README.md").values()
    (tmp_path / "readme.cpp").write_text(readme)
    (tmp_path / "documents.cpp").write_text(program())
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    where = f"-DCMAKE_PREFIX_PATH={prefix};{pathlib.Path(torch.__file__).parent}"
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", where, *launcher())
    run("cmake", "--build", tmp_path / "build")
    ran = run("sh", "-ec", f"cd '{tmp_path}' && build/readme && build/documents")
    assert ran.splitlines()[-1] == "all blocks ran"

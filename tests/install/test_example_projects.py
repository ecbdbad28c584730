"""Each C++ example is a project of its own: it finds an installed torchamp."""

import pathlib
import sys

import pytest
from conftest import ROOT, launcher, run

EXAMPLES = {path.parent.name: path.parent for path in ROOT.glob("examples/cpp/*/CMakeLists.txt")}


def configure(name: str, prefix: pathlib.Path, tree: pathlib.Path) -> None:
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    found = f"-DCMAKE_PREFIX_PATH={prefix}"
    run("cmake", "-S", EXAMPLES[name], "-B", tree, *launcher(), python, found)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_configures(name: str, prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    configure(name, prefix, tmp_path)
    assert name in run("cmake", "--build", tmp_path, "--target", "help")


def test_builds_and_runs(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    configure("migrate_scaler", prefix, tmp_path)
    run("cmake", "--build", tmp_path)
    assert "after_loss" in run(tmp_path / "migrate_scaler", "--device", "cpu")

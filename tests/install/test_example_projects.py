"""Each C++ example is a project of its own: it finds an installed torchamp."""

import pathlib
import sys

import pytest
from conftest import ROOT, launcher, run

EXAMPLES = {path.parent.name: path.parent for path in ROOT.glob("examples/cpp/*/CMakeLists.txt")}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_builds(name: str, prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    build(name, prefix, tmp_path)
    assert (tmp_path / name).is_file()


def test_runs(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    build("migrate_scaler", prefix, tmp_path)
    assert "after_loss" in run(tmp_path / "migrate_scaler", "--device", "cpu")


def build(name: str, prefix: pathlib.Path, tree: pathlib.Path) -> None:
    """Builds an example as a user does who has copied it. Unoptimised, which is fast to compile."""
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    found = f"-DCMAKE_PREFIX_PATH={prefix}"
    run("cmake", "-S", EXAMPLES[name], "-B", tree, *launcher(), python, found)
    run("cmake", "--build", tree)


def test_every_example_is_a_project() -> None:
    folders = {path.name for path in (ROOT / "examples" / "cpp").iterdir() if path.is_dir()}
    assert folders - {"common"} == EXAMPLES.keys()

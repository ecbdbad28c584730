"""Each C++ example is a stand-alone project that finds an installed torchamp."""

import pytest
from installed import EXAMPLES, ROOT, example, run


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_builds(name: str) -> None:
    assert example(name).is_file()


@pytest.mark.soak
def test_runs() -> None:
    assert "after_loss" in run(example("migrate_scaler"), "--device", "cpu")


def test_every_example_is_a_project() -> None:
    assert {path.parent.name for path in ROOT.glob("examples/cpp/**/main.cpp")} == EXAMPLES.keys()


def test_every_example_but_the_experiments_is_one_file() -> None:
    """migrate_scaler has two versions of a loop."""
    programs = ROOT.glob("examples/cpp/*/main.cpp")
    several = {path.parent.name for path in programs if '#include "' in path.read_text()}
    assert several == {"migrate_scaler"}

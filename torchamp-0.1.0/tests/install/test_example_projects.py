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
    folders = {path.name for path in (ROOT / "examples" / "cpp").iterdir() if path.is_dir()}
    assert folders - {"common"} == EXAMPLES.keys()

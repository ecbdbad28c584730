"""C++ and Python tell the same of the mistakes in tests/python/support/languages/mistakes.py, and a
call that fails changes nothing."""

from __future__ import annotations

import pytest
from languages.mistakes import LEVELS, NO_GRADS, mistakes
from languages.python_run import LanguagesRun
from languages.runs import Seen, difference, in_cpp, in_python, seen

pytestmark = pytest.mark.usefixtures("one_thread")

MISTAKES = dict(mistakes())
#: The backward inside has taken place.
CHANGES = "a_backward_inside_and_after"


@pytest.fixture(scope="module")
def cpp() -> dict[str, list[Seen]]:
    return dict(zip(MISTAKES, in_cpp([each.program for each in MISTAKES.values()])))


def told(after: Seen) -> list[str]:
    return [words for name, words in after.items() if name.startswith(("raised", "warned"))]


def state(after: Seen) -> Seen:
    """What a failed call must not change. A forward moves the buffers, and a step is counted."""
    passing = ("raised", "warned", "found", "buffers")
    return {
        name: value
        for name, value in after.items()
        if not name.startswith(passing) and not name.endswith("telemetry")
    }


@pytest.mark.parametrize("name", MISTAKES)
def test_both_languages_tell(cpp, name):
    mistake = MISTAKES[name]
    python = in_python(mistake.program)
    assert difference(mistake.program, cpp[name], python) == ""
    for language in (cpp[name], python):
        assert [told(after) for after in language] == mistake.told
    before = seen(LanguagesRun(mistake.program.setup))
    for after in python if CHANGES not in name else ():
        if "raised" in after or NO_GRADS in told(after):
            assert state(after) == state(before)
        before = after
    if mistake.like is not None:
        like = in_python(mistake.like)[-1]
        assert told(like) == [] and python[-1] == like


def test_clipping_before_any_backward_finds_0(cpp):
    for level in LEVELS:
        assert cpp[f"clipping_before_any_backward-{level}-SGD"][-1]["found"] == " 0"

"""Random programs in C++ in which nothing that training keeps may become infinite or NaN.

python tests/python/support/fuzz_finite.py
    --seed N    prints that program, and what is not finite if any is
    --count M   tries the M programs from there
    --shrink    makes one that is wrong small

Unlike those of draw_languages.py, losses overflow that reach parameters of optimizers that their
scale_loss is not given, and steps, clipping and zeroing follow in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from draw_languages import LANGUAGES, LanguagesDraw
from fuzz_events import Program
from languages import Seen, in_cpp
from seeds import Seeds

#: Which values a program sees that training keeps.
KEPT = ("params.", "masters.", "optimizers.")


class OverflowingDraw(LanguagesDraw):
    """Draws programs with a dynamic scale, which skips whatever is not finite."""

    weights = {
        **LANGUAGES,
        **dict.fromkeys(("edit", "edit_grad", "clip_model"), 0),
        "clip_norm": 3,
        "clip_value": 2,
    }

    def overrides(self, level: str) -> dict[str, Any]:
        return {**super().overrides(level), "loss_scale": "dynamic"}

    def backward(self) -> dict[str, Any]:
        args = super().backward()
        if self.chance.random() < 0.3:
            args["of"] = [self.of()]
        if self.chance.random() < 0.5:
            args["reach"] = self.some(list(range(len(self.mirror.params))), 0.3)
        if self.chance.random() < 0.3 and args["reach"]:
            args["inf_in"] = self.chance.choice(args["reach"])
        return args


def not_finite(seen: Seen) -> str:
    """The first value that training keeps and that is not; "": all are."""
    for name, value in seen.items():
        is_kept = name.startswith(KEPT) and not name.endswith(".telemetry")
        if is_kept and not all(math.isfinite(float(number)) for number in value.split()):
            return f"{name} is{value}"
    return seen.get("crashed", "")


def failures(programs: list[Program]) -> Iterator[str]:
    """What is not finite in each of them, in C++."""
    for program, seen in zip(programs, in_cpp(programs)):
        told = zip(("setup", *program.events), map(not_finite, seen))
        yield next((f"after {event}: {what}" for event, what in told if what), "")


SEEDS = Seeds(__file__, lambda seed: OverflowingDraw(seed).program(), failures)

if __name__ == "__main__":
    SEEDS.main(__doc__)

"""Random scripts in C++ in which nothing that training keeps may become infinite or NaN.

python tests/python/support/fuzz_finite.py
    --seed N    prints that script, and what is not finite if any is
    --count M   tries the M scripts from there
    --shrink    makes one that is wrong short

Unlike those of drawn_scripts.py, losses overflow that reach parameters of optimizers that their
scale_loss is not given, and steps, clipping and zeroing follow in any order.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compare_languages import in_cpp
from drawn_scripts import FLAGS, PARAMS, WEIGHTS, Draw
from fuzz_languages import BATCH, is_script, memory, shorter
from scripted import Seen
from scripts import FUSED, LIBTORCH, Script
from seed_arguments import seed_arguments

#: Which values a program sees that training keeps; telemetry has text.
KEPT = ("params.", "masters.", "optimizers.")


class OverflowingDraw(Draw):
    """Draws scripts with a dynamic scale, which skips whatever is not finite."""

    weights = {**WEIGHTS, "clip_norm": 5, "step": 9, "negate": 0, "halve_grads": 0, "replace": 0}
    weights["clip_model"] = 0

    def draw_kinds(self) -> list[str]:
        kinds = self.chance.choice([LIBTORCH, LIBTORCH + FUSED])
        return self.chance.choices(kinds, k=self.chance.choice([2, 2, 3]))

    def setup(self) -> Script:
        events = super().setup()
        self.overflows = True
        return events

    def initialize(self, may_be_narrow: bool) -> Script:
        event, *rest = super().initialize(may_be_narrow)
        self.is_dynamic = True
        initialize, level, _, *overrides = event.split()
        scales = ["scale 0 1024 0", "scale 1 256 0"]
        looks = [other for other in rest if other.startswith("look")]
        return [" ".join([initialize, level, "dynamic", *overrides]), *scales, *looks]

    def reach(self, of: list[int]) -> list[str]:
        if self.happens(0.5):
            return []
        return ["reach=" + ",".join(self.chance.sample(PARAMS, self.chance.randint(1, 5)))]

    def indices(self) -> list[int]:
        return [self.index()] if self.happens(0.5) else super().indices()

    def flags(self) -> list[str]:
        return self.some({**FLAGS, "overflow": 0.3})

    def note(self, of: list[int], flags: list[str]) -> None:
        """Nothing is avoided after an overflow."""


def not_finite(seen: Seen) -> str:
    """The first value that training keeps and that is not; "": all are."""
    for name, value in seen.items():
        is_kept = name.startswith(KEPT) and not name.endswith((".grad", ".telemetry"))
        if is_kept and not all(math.isfinite(float(number)) for number in value.split()):
            return f"{name} is{value}"
    return seen.get("crashed", "")


def failures(scripts: list[Script]) -> Iterator[str]:
    """What is not finite in each of them, in C++."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        for script, seen in zip(scripts, in_cpp(scripts, Path(folder))):
            found = ((event, not_finite(after)) for event, after in zip(script, seen))
            yield next((f"after {event!r}: {what}" for event, what in found if what), "")


def found(seeds: range) -> Iterator[tuple[int, str]]:
    """The seeds whose scripts are wrong, and in what."""
    for first in range(seeds.start, seeds.stop, BATCH):
        batch = range(first, min(first + BATCH, seeds.stop))
        scripts = [OverflowingDraw(seed).script() for seed in batch]
        yield from ((seed, what) for seed, what in zip(batch, failures(scripts)) if what)


def shrunk(script: Script) -> Script:
    """A script that is wrong still, and none that `shorter` makes of it is."""
    for candidate in shorter(script):
        if is_script(candidate) and any(failures([candidate])):
            return shrunk(candidate)
    return script


def main() -> None:
    args = seed_arguments(__doc__)
    if args.count == 1:
        print("\n".join(OverflowingDraw(args.seed).script()))
    failed = list(found(range(args.seed, args.seed + args.count)))
    for seed, what in failed:
        script = OverflowingDraw(seed).script()
        print(f"# seed {seed}: {what}", *(shrunk(script) if args.shrink else []), sep="\n")
    print(f"{args.count} scripts, {len(failed)} wrong: {[seed for seed, _ in failed]}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()

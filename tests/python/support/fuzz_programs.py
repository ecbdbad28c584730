"""Random training programs by torchamp, against a mirror in plain PyTorch.

python tests/python/support/fuzz_programs.py
    --seed N    prints that program, and what differs if any does
    --count M   tries the M programs from there
    --shrink    makes one that differs small
"""

from __future__ import annotations

from collections.abc import Iterator

from fuzz_draw import Draw
from fuzz_events import Program
from fuzz_run import failure
from seeds import Seeds


def failures(programs: list[Program]) -> Iterator[str]:
    return map(failure, programs)


SEEDS = Seeds(__file__, lambda seed: Draw(seed).program(), failures)

if __name__ == "__main__":
    SEEDS.main(__doc__)

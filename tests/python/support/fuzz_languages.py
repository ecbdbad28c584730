"""Random programs in C++ and in Python, which must do the same bit for bit.

python tests/python/support/fuzz_languages.py
    --seed N    prints that program, and what differs if any does
    --count M   tries the M programs from there
    --shrink    makes one that differs small
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from draw_languages import LanguagesDraw
from fuzz_events import Program
from languages import difference, in_cpp, in_python
from seeds import Seeds


def failures(programs: list[Program]) -> Iterator[str]:
    for program, cpp in zip(programs, in_cpp(programs)):
        yield difference(program, cpp, in_python(program))


SEEDS = Seeds(__file__, lambda seed: LanguagesDraw(seed).program(), failures)

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    SEEDS.main(__doc__)

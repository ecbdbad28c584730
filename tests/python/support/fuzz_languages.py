"""Random scripts in C++ and in Python, which must do the same bit for bit.

python tests/python/support/fuzz_languages.py
    --seed N    prints that script, and what differs if any does
    --count M   tries the M scripts from there
    --shrink    makes one that differs short
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch
from compare_languages import difference, in_cpp, in_python
from drawn_scripts import drawn
from scripts import Script
from seed_arguments import seed_arguments

#: How many scripts one process of the C++ program follows.
BATCH = 50


def differences(scripts: list[Script]) -> Iterator[str]:
    """What differs in each of them."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        for script, cpp in zip(scripts, in_cpp(scripts, Path(folder))):
            yield difference(script, cpp, in_python(script, Path(folder)))


def memory() -> str | None:
    """A folder where files are written to memory alone, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def found(seeds: range) -> Iterator[tuple[int, str]]:
    """The seeds whose scripts differ, and in what."""
    for first in range(seeds.start, seeds.stop, BATCH):
        batch = range(first, min(first + BATCH, seeds.stop))
        for seed, differing in zip(batch, differences([drawn(seed) for seed in batch])):
            if differing:
                yield seed, differing


def shorter(script: Script) -> Iterator[Script]:
    """Scripts without some of the events, or without a word of one; the shortest first."""
    for size in (8, 4, 2, 1):
        for i in range(0, len(script), size):
            yield script[:i] + script[i + size :]
    for i, event in enumerate(script):
        words = event.split()
        for j in range(1, len(words)):
            yield [*script[:i], " ".join(words[:j] + words[j + 1 :]), *script[i + 1 :]]


def in_batches(scripts: Iterable[Script]) -> Iterator[list[Script]]:
    rest = iter(scripts)
    while batch := list(islice(rest, BATCH)):
        yield batch


def differing(scripts: Iterable[Script]) -> Script | None:
    """The first that differs, of those that are scripts."""
    for batch in in_batches(scripts):
        possible = [script for script in batch if is_script(script)]
        for script, found_in in zip(possible, differences(possible)):
            if found_in:
                return script
    return None


#: The events that need no initialize before them.
AT_FIRST = ("optimizer", "freeze", "thaw", "initialize")


def is_script(script: Script) -> bool:
    """Whether it can be followed."""
    is_initialized = False
    for event in script:
        name = event.split()[0]
        if is_initialized and name in ("optimizer", "initialize"):
            return False
        if not is_initialized and name not in AT_FIRST:
            return False
        if name == "optimizer" and len(event.split()) < 3:
            return False
        is_initialized = name != "release" and (is_initialized or name == "initialize")
    return any(event.startswith("optimizer") for event in script) and is_followed(script)


def is_followed(script: Script) -> bool:
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        try:
            in_python(script, Path(folder))
        except (AttributeError, IndexError, KeyError, OSError, TypeError):
            return False
    return True


def shrunk(
    script: Script, first_bad: Callable[[Iterable[Script]], Script | None] = differing
) -> Script:
    """A script that is bad still, and no shorter one is."""
    smaller = first_bad(shorter(script))
    return script if smaller is None else shrunk(smaller, first_bad)


def tell(seed: int, what: str, shrinks: bool) -> None:
    script = drawn(seed)
    if shrinks:
        script = shrunk(script)
        what = next(differences([script]))
    print(f"# seed {seed}: {what}", *script, "", sep="\n", flush=True)


def main() -> None:
    args = seed_arguments(__doc__)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.count == 1:
        print(*drawn(args.seed), "", sep="\n")
    failed = []
    for seed, what in found(range(args.seed, args.seed + args.count)):
        tell(seed, what, args.shrink)
        failed.append(seed)
    print(f"{args.count} scripts, {len(failed)} differ: {failed}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()

"""The command line of the fuzzers that draw by seeds."""

from __future__ import annotations

import argparse


def seed_arguments(doc: str) -> argparse.Namespace:
    """seed, count and shrink; the first line of `doc` describes the program."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--shrink", action="store_true")
    return parser.parse_args()

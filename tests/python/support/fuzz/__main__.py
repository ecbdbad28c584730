"""Tries what seeds draw, and tells what is wrong.

python -m fuzz PROPERTY, one of fuzz/properties.py
    --seed N    prints what that seed draws
    --count M   tries the M seeds from there
    --shrink    makes a program that is wrong small
"""

from __future__ import annotations

import argparse
import warnings

import torch

from fuzz.properties import PROPERTIES
from fuzz.shrink import shrunk


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("property", choices=PROPERTIES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--shrink", action="store_true")
    args = parser.parse_args()
    property_ = PROPERTIES[args.property]
    if args.count == 1:
        print(property_.drawn(args.seed))
    failed = []
    for seed, what in property_.found(range(args.seed, args.seed + args.count)):
        failed.append(seed)
        drawn = property_.drawn(seed)
        if args.shrink:
            drawn = shrunk(drawn, lambda program: any(property_.failures([program])))
            (what,) = property_.failures([drawn])
        print(f"# seed {seed}: {what}\n{drawn}\n", flush=True)
    print(f"{args.count} tried, {len(failed)} wrong: {failed}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main()

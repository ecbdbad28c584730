"""Scripts, as tests/python/scripts.py has them, that chance makes."""

from __future__ import annotations

import random

from scripts import FUSED, LEVELS, Script, start

#: How often an event is drawn.
WEIGHTS = {
    "backward": 10,
    "step": 5,
    "zero": 3,
    "zero_model": 1,
    "clip_norm": 2,
    "clip_value": 1,
    "set": 2,
    "scale": 1,
    "add_group": 0.5,
    "write": 0.5,
    "look": 0.5,
    "save": 0.5,
    "load": 0.5,
}
FLAGS = {"delayed": 0.25, "deferred": 0.1, "overflow": 0.1, "inner": 0.15, "raising": 0.08}
LENGTH = 30


def drawn(seed: int, is_plain: bool) -> Script:
    """The script of a seed; with LibTorch's SGD if `is_plain`."""
    return Draw(seed, is_plain).script()


class Draw:
    """Draws events, but none after which the languages are known to differ.

    Where the optimizer is LibTorch's, no zeros are written after an overflow. Where two of them
    share a part, none overflows: C++ takes away the shared grad that the other has stepped by
    already, and would again.
    """

    def __init__(self, seed: int, is_plain: bool) -> None:
        self.chance = random.Random(seed)
        self.is_plain = is_plain
        self.has_overflowed = False
        self.kinds: list[str] = []
        self.shares = False

    def script(self) -> Script:
        first = self.first()
        names = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=LENGTH)
        return first + [getattr(self, name)() for name in names]

    def first(self) -> Script:
        level, loss_scale = self.chance.choice(LEVELS), self.loss_scale()
        events = start(level, *self.optimizers(), loss_scale=loss_scale)
        scales = ["scale 0 1024 0", "scale 1 256 0"] * (loss_scale == "dynamic")
        return [*events, *scales, "save run.pt"]

    def loss_scale(self) -> str:
        return self.chance.choice(["dynamic", "dynamic", "128", "1"])

    def optimizers(self) -> list[str]:
        """One, two of different parts, or two that share the last."""
        first, last = self.chance.choice(
            [("first norm last", ""), ("first norm", "last"), ("first norm last", "last")]
        )
        self.kinds = [self.kind() for part in (first, last) if part]
        self.shares = bool(last) and last in first
        return [f"{kind} {part}" for kind, part in zip(self.kinds, (first, last))]

    def kind(self) -> str:
        return "SGD" if self.is_plain else self.chance.choice(FUSED)

    def index(self) -> int:
        return self.chance.randrange(len(self.kinds))

    def to(self) -> str:
        is_taken_away = self.is_plain and self.has_overflowed
        return "none" if is_taken_away else self.chance.choice(["none", "zeros"])

    def backward(self) -> str:
        flags = [flag for flag, share in FLAGS.items() if self.chance.random() < share]
        if self.is_plain and self.shares and "overflow" in flags:
            flags.remove("overflow")
        self.has_overflowed |= "overflow" in flags
        return " ".join(["backward", self.loss_id(), str(self.chance.randrange(100)), *flags])

    def loss_id(self) -> str:
        return self.chance.choice("01")

    def step(self) -> str:
        return f"step {self.index()}"

    def zero(self) -> str:
        return f"zero {self.index()} {self.to()}"

    def zero_model(self) -> str:
        is_taken_away = self.is_plain and self.has_overflowed
        return self.zero() if is_taken_away else f"zero_model {self.to()}"

    def clip_norm(self) -> str:
        return f"clip_norm {self.chance.choice([0.1, 10])}"

    def clip_value(self) -> str:
        return "clip_value 0.01"

    def set(self) -> str:
        index = self.index()
        if self.kinds[index] == "FusedAdam":
            return f"set {index} amsgrad {self.chance.choice([0, 1])}"
        if self.kinds[index].endswith("SGD"):
            return f"set {index} momentum {self.chance.choice([0, 0.5])}"
        return f"set {index} lr {self.chance.choice([0.01, 0.3])}"

    def scale(self) -> str:
        """Not above 2048, where float16 would overflow by itself."""
        value = 2.0 ** self.chance.randrange(6, 12)
        return f"scale {self.loss_id()} {value} {self.chance.choice([0, 1998, 1999])}"

    def add_group(self) -> str:
        return f"add_group {self.index()}"

    def write(self) -> str:
        return "write"

    def look(self) -> str:
        return "look"

    def save(self) -> str:
        return "save run.pt"

    def load(self) -> str:
        return "load run.pt"

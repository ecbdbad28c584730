"""Scripts, as tests/python/support/scripts.py has them, that chance makes."""

from __future__ import annotations

import random

from scripts import FUSED, LEVELS, LIBTORCH, Script

#: How often an event is drawn.
WEIGHTS = {
    "backward": 12,
    "step": 7,
    "zero": 3,
    "zero_model": 1,
    "clip_norm": 1.5,
    "clip_value": 0.7,
    "clip_model": 1,
    "closure": 1,
    "drop": 0.3,
    "replace": 0.3,
    "halve_grads": 0.2,
    "negate": 0.3,
    "set": 1,
    "scale": 0.7,
    "freeze": 0.4,
    "thaw": 0.5,
    "write": 0.5,
    "write_data": 0.3,
    "swap": 0.5,
    "halve_states": 0.4,
    "clear_states": 0.3,
    "add_group": 0.4,
    "look": 0.3,
    "save": 0.3,
    "load": 0.3,
    "restart": 0.3,
}
#: How often a backward has a flag.
FLAGS = {"delayed": 0.2, "deferred": 0.1, "overflow": 0.1, "nan": 0.02, "tiny": 0.04}
#: The same in a storm, where steps are skipped in a row.
STORM = {**FLAGS, "overflow": 0.6}
#: How often the scope of a scale_loss has.
IN_SCOPE = {"twice": 0.05, "zeroing": 0.04, "unused": 0.03, "unscaled": 0.02}
#: How often it ends so.
ENDS = {"raising": 0.06, "stepping": 0.02, "nested": 0.02, "late": 0.02}
LENGTH = 34

PARAMS = (
    "first.weight",
    "first.bias",
    "norm.weight",
    "norm.bias",
    "last.weight",
    "last.bias",
    "scalar",
    "empty",
    "strided",
    "sliced",
)
PARTS = tuple(dict.fromkeys(param.partition(".")[0] for param in PARAMS))


def drawn(seed: int) -> Script:
    """The script of a seed."""
    return Draw(seed).script()


class Draw:
    """Draws events. Optimizers share parameters only at levels without masters. None of these, by
    which LibTorch's optimizers differ from torch's:

    - They step 16-bit parameters without masters by states in float32, torch's by 16-bit ones, and
      round otherwise. Only SGD does the same, unless it has stepped in float32 before.
    - Adam's averages of infinities are others than torch's.
    - Adagrad cannot step what is added to it.
    """

    weights = WEIGHTS

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.has_saved = False
        self.given_extra: set[int] = set()

    def happens(self, share: float) -> bool:
        return self.chance.random() < share

    def some(self, shares: dict[str, float]) -> list[str]:
        return [name for name, share in shares.items() if self.happens(share)]

    def script(self) -> Script:
        events = self.setup()
        names = self.chance.choices(list(self.weights), list(self.weights.values()), k=LENGTH)
        for name in names:
            events += getattr(self, name)()
        return events

    # ---- the setup

    def setup(self) -> Script:
        self.kinds = self.draw_kinds()
        self.shares = self.happens(0.5) and (
            set(self.kinds) <= set(FUSED) or not set(self.kinds) & set(FUSED)
        )
        self.parts = self.distributed()
        self.kinds = [kind for kind, parts in zip(self.kinds, self.parts) if parts]
        self.parts = [parts for parts in self.parts if parts]
        optimizers = [self.optimizer(*each) for each in zip(self.kinds, self.parts)]
        self.plain = set(LIBTORCH) & set(self.kinds)
        self.overflows = not self.plain or self.happens(0.7)
        self.storms = self.overflows and self.happens(0.15)
        freezes = self.freeze() if self.happens(0.2) else []
        return [*optimizers, *freezes, *self.initialize(self.plain <= {"SGD"})]

    def draw_kinds(self) -> list[str]:
        kinds = self.chance.choice([LIBTORCH, LIBTORCH, FUSED, LIBTORCH + FUSED])
        return self.chance.choices(kinds, k=self.chance.choice([1, 2, 2, 3]))

    def distributed(self) -> list[list[str]]:
        """Which optimizer steps what; some is stepped by several, some by none."""
        units = self.chance.choice([PARTS, PARTS, PARAMS])
        split: list[list[str]] = [[] for _ in self.kinds]
        for unit in units:
            users = 0 if self.happens(0.1) else 1 + (self.shares and self.happens(0.4))
            for parts in self.chance.sample(split, min(users, len(split))):
                parts.append(unit)
        return split

    def optimizer(self, kind: str, parts: list[str]) -> str:
        cut = self.chance.randrange(1, len(parts)) if len(parts) > 1 else 0
        groups = [*parts[:cut], "|", *parts[cut:]] if cut and self.happens(0.3) else parts
        return " ".join(["optimizer", kind, *self.storage(kind), *groups])

    def storage(self, kind: str) -> list[str]:
        return [] if kind in LIBTORCH else self.some({"state_dtype=bfloat16": 0.1})

    def initialize(self, may_be_narrow: bool) -> Script:
        """may_be_narrow: whether 16-bit parameters may have no masters."""
        levels = [*LEVELS, "O2", "O2", "O5"]
        levels = [each for each in levels if not (self.shares and each in ("O2", "O5"))]
        level = self.chance.choice([each for each in levels if may_be_narrow or each != "O3"])
        loss_scales = ["dynamic"] * 4 * self.overflows + ["128", "1"]
        loss_scale = self.chance.choice(loss_scales)
        self.is_dynamic = loss_scale == "dynamic"
        overrides = self.overrides(level, may_be_narrow)
        self.adopts = "adopt_data_writes=1" in overrides
        self.is_lazy = "materialize_master_grads=0" in overrides
        event = " ".join(["initialize", level, loss_scale, *overrides])
        scales = ["scale 0 1024 0", "scale 1 256 0"] * (loss_scale == "dynamic")
        looks = [f"look {i}" for i, kind in enumerate(self.kinds) if kind in LIBTORCH]
        return [event, *scales, *looks]

    def overrides(self, level: str, may_be_narrow: bool) -> list[str]:
        shares = {
            "adopt_data_writes=1": 0.1,
            "materialize_master_grads=0": 0.15,
            "max_consecutive_skips=2": 1.0 if self.storms else 0.1,
            "min_loss_scale=64": 0.1,
            "max_loss_scale=2048": 0.1,
        }
        if level in ("O2", "O3", "O5"):
            shares["keep_batchnorm_fp32=0"] = shares["keep_batchnorm_fp32=1"] = 0.1
            shares["master_weights=1"] = 0.1 * (not self.shares)
            shares["master_weights=0"] = 0.1 * may_be_narrow
        return self.some(shares)

    # ---- what events are about

    def index(self) -> int:
        return self.chance.randrange(len(self.kinds))

    def indices(self) -> list[int]:
        """Mostly none, for all."""
        if self.happens(0.6):
            return []
        everyone = range(len(self.kinds))
        return sorted(self.chance.sample(everyone, self.chance.randint(1, len(everyone))))

    def part(self) -> str:
        return self.chance.choice(PARTS + PARAMS)

    def loss_id(self) -> str:
        return self.chance.choice("01")

    def to(self) -> str:
        return self.chance.choice(["none", "none", "zeros"])

    # ---- the events

    def backward(self) -> Script:
        of = self.indices()
        reach = self.reach(of)
        if reach == ["inner"] and not of:
            of = list(range(len(self.kinds)))
        flags = [*reach, *self.flags(), *self.some(IN_SCOPE), *self.end(reach)]
        if of:
            flags.append("of=" + ",".join(map(str, of)))
        if self.happens(0.08) and "delayed" not in flags:
            flags.append(f"masters={self.chance.choice(of or range(len(self.kinds)))}")
        return [" ".join(["backward", self.loss_id(), str(self.chance.randrange(100)), *flags])]

    def reach(self, of: list[int]) -> list[str]:
        """The whole output, mostly; else some parameters, mostly of the optimizers given."""
        if self.happens(0.5):
            return ["inner"] * self.happens(0.2)
        known = [part for i in of or range(len(self.kinds)) for part in self.parts[i]]
        strays = self.happens(0.2)
        among = list(PARAMS) if strays else list(dict.fromkeys(known))
        chosen = self.chance.sample(among, self.chance.randint(1, len(among)))
        return ["reach=" + ",".join(chosen)]

    def flags(self) -> list[str]:
        overflows = self.overflows and (self.is_dynamic or not self.plain & {"Adam", "AdamW"})
        flags = self.some(STORM if self.storms else FLAGS)
        return [flag for flag in flags if overflows or flag not in ("overflow", "nan")]

    def end(self, reach: list[str]) -> list[str]:
        """Hooks raise in a backward that reaches a layer."""
        ends = self.some(ENDS)[:1]
        return [end for end in ends if end != "raising" or reach in ([], ["inner"])]

    def step(self) -> Script:
        return [f"step {self.index()}"]

    def zero(self) -> Script:
        return [f"zero {self.index()} {self.to()}"]

    def zero_model(self) -> Script:
        return ["zero_model none"]

    def clip_norm(self) -> Script:
        return [" ".join(["clip_norm", self.chance.choice(["0.1", "10"]), *self.clipped()])]

    def clip_value(self) -> Script:
        return [" ".join(["clip_value", "0.01", *self.clipped()])]

    def clip_model(self) -> Script:
        """Not where it would clip scaled grads."""
        return ["clip_model 0.01"] * (not self.is_lazy)

    def closure(self) -> Script:
        index, (backward,) = self.index(), self.backward()
        backward = backward.replace(" stepping", "")
        return [f"zero {index} none", f"closure {index} {backward.partition(' ')[2]}"]

    def clipped(self) -> list[str]:
        return list(map(str, self.indices()))

    def drop(self) -> Script:
        return [f"drop {self.part()}"]

    def replace(self) -> Script:
        return [f"replace {self.part()}"]

    def halve_grads(self) -> Script:
        return [f"halve_grads {self.part()}"]

    def negate(self) -> Script:
        return [f"negate {self.index()}"]

    def set(self) -> Script:
        index = self.index()
        if self.kinds[index] == "FusedAdam":
            return [f"set {index} amsgrad {self.chance.choice([0, 1])}"]
        if self.kinds[index].endswith("SGD"):
            return [f"set {index} momentum {self.chance.choice([0, 0.5])}"]
        return [f"set {index} lr {self.chance.choice([0.01, 0.03])}"]  # no overflow by itself

    def scale(self) -> Script:
        """Not above 2048, where float16 would overflow by itself."""
        value = 2.0 ** self.chance.randrange(6, 12)
        return [f"scale {self.loss_id()} {value} {self.chance.choice([0, 1998, 1999])}"]

    def freeze(self) -> Script:
        return [f"freeze {self.part()}"]

    def thaw(self) -> Script:
        return [f"thaw {self.part()}"]

    def write(self) -> Script:
        return [f"write {self.part()}"]

    def swap(self) -> Script:
        """And back at once: the first backward in C++ takes over what was written before."""
        return [f"swap {self.part()}", "swap_back"]

    def halve_states(self) -> Script:
        return [f"halve_states {self.index()}"]

    def clear_states(self) -> Script:
        """Adagrad makes them before the first step."""
        index = self.index()
        return [f"clear_states {index}"] * (self.kinds[index] not in ("Adagrad", *FUSED))

    def write_data(self) -> Script:
        refresh = ["refresh"] * (not self.adopts)
        return [f"write_data {self.part()}", *refresh]

    def add_group(self) -> Script:
        index = self.index()
        if self.kinds[index] == "Adagrad":
            return []
        self.given_extra.add(index)
        return [f"add_group {index}"]

    def look(self) -> Script:
        return [" ".join(["look", *map(str, self.indices())])]

    def save(self) -> Script:
        self.has_saved = True
        return ["save run.pt"]

    def load(self) -> Script:
        return ["load run.pt"] * self.has_saved

    def restart(self) -> Script:
        self.shares |= len(self.given_extra) > 1
        return ["release", *self.initialize(may_be_narrow=not self.plain)]

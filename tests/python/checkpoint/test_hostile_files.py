"""A file in which any one value is wrong is refused and changes nothing, or loads."""

import copy
import io
import math

import pytest
import torch
from nets import changed, everything, file_by, initialized, train_step
from test_damaged_files import numbers_of, saved_bytes

from torchamp import amp, optimizers

HOSTILE = {
    "none": lambda: None,
    "text": lambda: "x",
    "fraction": lambda: 1.5,
    "negative": lambda: -3,
    "nan": lambda: math.nan,
    "infinite": lambda: math.inf,
    "huge": lambda: 1e300,
    "beyond_32_bits": lambda: 2**40,
    "tiny": lambda: 1e-300,
    "boolean": lambda: True,
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "boolean_tensor": lambda: torch.ones(3, 4, dtype=torch.bool),
    "meta": lambda: torch.ones(3, 4, device="meta"),
    "sparse": lambda: torch.eye(3, 4).to_sparse(),
    "empty_tensor": lambda: torch.empty(0),
    "empty_list": lambda: [],
    "empty_dict": lambda: {},
    "list": lambda: [None, "x", [1]],
    "dict": lambda: {"x": None},
}

MAKERS = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.125, momentum=0.5),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters()),
    "FusedAdamW": lambda m: optimizers.FusedAdamW(m.parameters(), lr=0.01),
    "FusedNovoGrad": lambda m: optimizers.FusedNovoGrad(m.parameters(), lr=0.01),
}


def paths_of(tree, path=()):
    """The path of every entry, at every depth."""
    if isinstance(tree, (dict, list, tuple)):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield (*path, key)
            yield from paths_of(tree[key], (*path, key))


def with_value(tree, path: tuple, value):
    """A copy of the tree with `value` at `path`; without the entry if it is KeyError."""
    copied = copy.copy(tree) if isinstance(tree, dict) else list(tree)
    key, *rest = path
    if rest:
        copied[key] = with_value(tree[key], tuple(rest), value)
    elif value is KeyError:
        del copied[key]
    else:
        copied[key] = value
    return copied


def file_of(checkpoint) -> io.BytesIO:
    return file_by(lambda file: torch.save(checkpoint, file))


def trained(make):
    pair = initialized("O2", torch.nn.Linear(4, 3), make)
    train_step(*pair)
    return pair


class Victim:
    """A run into which hostile files are loaded."""

    def __init__(self, make) -> None:
        self.make = make
        self.pair = trained(make)
        self.tensors, self.numbers = everything(*self.pair), numbers_of(*self.pair)
        self.bytes = saved_bytes(*self.pair)

    def check(self, checkpoint, what: str) -> None:
        try:
            amp.load(*self.pair, file_of(checkpoint))
        except RuntimeError as error:
            assert str(error).startswith("amp.load: expected "), what
            assert changed(self.tensors, everything(*self.pair)) == set(), what
            assert numbers_of(*self.pair) == self.numbers, what
        else:
            self.__init__(self.make)


@pytest.mark.parametrize(
    "name",
    ["SGD", *(pytest.param(name, marks=pytest.mark.soak) for name in MAKERS if name != "SGD")],
)
def test_every_wrong_value(name):
    victim = Victim(MAKERS[name])
    checkpoint = torch.load(io.BytesIO(victim.bytes), weights_only=True)
    for path in paths_of(checkpoint):
        for kind, make in HOSTILE.items():
            victim.check(with_value(checkpoint, path, make()), f"{path}: {kind}")


@pytest.mark.parametrize("name", MAKERS)
def test_every_missing_value(name):
    victim = Victim(MAKERS[name])
    checkpoint = torch.load(io.BytesIO(victim.bytes), weights_only=True)
    for path in paths_of(checkpoint):
        victim.check(with_value(checkpoint, path, KeyError), f"{path}: missing")


REFUSED = [
    *[(("loss_scalers", 0, "loss_scale"), kind) for kind in ("none", "text", "huge", "tiny")],
    *[(("loss_scalers", 0, "loss_scale"), kind) for kind in ("nan", "infinite", "negative")],
    (("loss_scalers", 0, "growth_tracker"), "fraction"),
    (("loss_scalers", 0, "growth_tracker"), "beyond_32_bits"),
    (("models", 0, "weight"), "meta"),
    (("models", 0, "weight"), "boolean_tensor"),
    (("models", 0, "weight"), "sparse"),
    (("optimizers", 0, "state", 0, "step"), "none"),
    (("optimizers", 0, "state", 0, "step"), "text"),
    (("optimizers", 0, "state", 0, "exp_avg"), "meta"),
    (("optimizers", 0, "state", 0, "exp_avg"), "boolean_tensor"),
    (("optimizers", 0, "state", 0, "exp_avg"), None),
    (("optimizers", 0, "param_groups", 0, "lr"), "text"),
    (("optimizers", 0, "param_groups", 0, "lr"), None),
    (("optimizers", 0, "param_groups", 0, "betas"), "empty_list"),
]


@pytest.mark.parametrize("path, kind", REFUSED, ids=lambda part: str(part))
@pytest.mark.parametrize("name", ["Adam", "FusedAdamW"])
def test_these_are_refused(name, path, kind):
    victim = Victim(MAKERS[name])
    checkpoint = torch.load(io.BytesIO(victim.bytes), weights_only=True)
    value = KeyError if kind is None else HOSTILE[kind]()
    with pytest.raises(RuntimeError, match="^amp.load: expected "):
        amp.load(*victim.pair, file_of(with_value(checkpoint, path, value)))

"""What forward writes to its arguments: the caller sees it at every level."""

import collections
import dataclasses
import re
import warnings

import pytest
import torch
from nets import LEVELS, initialized
from torch import nn

CAST_LEVELS = ["O0", "O2", "O3", "O5"]


class Net(nn.Module):
    """Calls `write` with what its layer computes and the argument to write to."""

    def __init__(self, write=lambda h, memory: None):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.write = write

    def forward(self, x, memory, *, more=None):
        h = self.layer(x)
        self.write(h.detach(), memory)
        return h


class Recurrent(Net):
    def forward(self, x, memory):
        memory.mul_(2).add_(self.layer(x))


class Returning(Net):
    def forward(self, x, memory):
        return memory + self.layer(x)


@dataclasses.dataclass
class State:
    h: torch.Tensor
    calls: int = 0


class Slotted:
    __slots__ = ("calls", "h")

    def __init__(self, h):
        self.h, self.calls = h, 0

    def to(self, device):
        raise AssertionError


def called(level, write, memory):
    """`memory` after a call of a net at `level`, and what it returned."""
    model, _ = initialized(level, Net(write))
    return memory, model(torch.ones(1, 4), memory)


# Tensors.


def fill(h, memory):
    memory.copy_(h)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("level", LEVELS)
def test_tensors(level, mode):
    model, _ = initialized(level, Net(fill))
    with mode():
        memory = torch.zeros(1, 4)
        h = model(torch.ones(1, 4), memory)
    assert memory.dtype == torch.float32 and torch.equal(memory, h.float()) and h.any()


@pytest.mark.parametrize(
    "wrap, write",
    [
        (lambda memory: {"deep": [memory]}, lambda h, memory: fill(h, memory["deep"][0])),
        (lambda memory: (memory, 3), lambda h, memory: fill(h, memory[0])),
        (State, lambda h, memory: fill(h, memory.h)),
        (Slotted, lambda h, memory: fill(h, memory.h)),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_tensors_in_others(level, wrap, write):
    memory = torch.zeros(1, 4)
    _, h = called(level, write, wrap(memory))
    assert torch.equal(memory, h.float())


@pytest.mark.parametrize("level", CAST_LEVELS)
def test_what_forward_does_not_write_is_not_rounded(level):
    before = torch.tensor([[1e30, 1 / 3, 0.1, -0.0], [1.0, 2.0, 3.0, 4.0]])
    memory, h = called(level, lambda h, memory: memory[1:].copy_(h), before.clone())
    assert torch.equal(memory[0], before[0]) and torch.equal(memory[1:], h.float())


@pytest.mark.parametrize("level", CAST_LEVELS)
def test_views(level):
    whole = torch.zeros(4, 3)
    memory, h = called(level, fill, whole[None, :, 1])
    assert torch.equal(whole[:, 1], h.float()[0]) and not whole[:, ::2].any()


def test_other_dtypes_at_o0():
    memory, h = called("O0", fill, torch.zeros(1, 4, dtype=torch.float64))
    assert memory.dtype == torch.float64 and torch.equal(memory, h.double())


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_written_is_not_touched(level):
    memory, _ = called(level, lambda h, memory: memory + 1, torch.zeros(1, 4))
    assert memory._version == 0


@pytest.mark.parametrize("level", LEVELS)
def test_history(level):
    """As in recurrent models that backward through what an earlier call wrote."""
    model, _ = initialized(level, Recurrent())
    first = torch.ones(1, 4, requires_grad=True)
    memory = first * 3
    model(torch.ones(1, 4), memory)
    memory.sum().backward()
    assert first.grad.eq(6).all() and model.layer.bias.grad.eq(1).all()


# Containers and objects.


def use_dict(h, memory):
    memory["new"] = h
    memory["calls"] += 1
    del memory["old"]


def use_sequence(h, memory):
    memory.append(h)
    memory[1] += 1
    del memory[2]


def use_attributes(h, memory):
    memory.calls += 1


@pytest.mark.parametrize("with_float", [False, True])
@pytest.mark.parametrize(
    "kind", [dict, collections.OrderedDict, collections.UserDict, lambda d: {"deep": d}]
)
@pytest.mark.parametrize("level", LEVELS)
def test_mappings(level, kind, with_float):
    first = torch.ones(1) if with_float else 1
    inner = collections.OrderedDict(first=first, calls=3, old=torch.ones(1))
    memory = kind(inner)
    write = use_dict if "deep" not in memory else lambda h, memory: use_dict(h, memory["deep"])
    called(level, write, memory)
    memory = memory.get("deep", memory)
    assert list(memory) == ["first", "calls", "new"]
    assert memory["first"] is first and memory["calls"] == 4 and memory["new"].any()


@pytest.mark.parametrize("with_float", [False, True])
@pytest.mark.parametrize("kind", [list, collections.deque])
@pytest.mark.parametrize("level", LEVELS)
def test_sequences(level, kind, with_float):
    first = torch.ones(1) if with_float else 1
    memory, _ = called(level, use_sequence, kind([first, 3, "old"]))
    assert memory[0] is first and memory[1] == 4 and memory[2].any() and len(memory) == 3


@pytest.mark.parametrize("kind", [State, Slotted])
@pytest.mark.parametrize("level", LEVELS)
def test_attributes(level, kind):
    h = torch.ones(1)
    memory, _ = called(level, use_attributes, kind(h))
    assert memory.calls == 1 and memory.h is h


@pytest.mark.parametrize(
    "make, write, read",
    [
        (dict, lambda h, memory: memory.update(h=h), lambda memory: memory["h"]),
        (list, lambda h, memory: memory.append(h), lambda memory: memory[0]),
        (lambda: {"deep": []}, lambda h, memory: memory["deep"].append(h), lambda m: m["deep"][0]),
        (
            lambda: Slotted(torch.ones(1)),
            lambda h, memory: setattr(memory, "h", h),
            lambda memory: memory.h,
        ),
    ],
)
@pytest.mark.parametrize("level", CAST_LEVELS)
def test_what_forward_leaves_in_them_is_an_output(level, make, write, read):
    memory, h = called(level, write, make())
    assert read(memory).dtype == h.dtype == torch.float32 and torch.equal(read(memory), h)


@pytest.mark.parametrize("level", LEVELS)
def test_what_forward_moves_is_the_callers(level):
    tensor = torch.ones(1)
    memory, _ = called(level, lambda h, memory: memory.append(memory.pop(0)), [tensor, 3])
    assert memory[0] == 3 and memory[1] is tensor


@pytest.mark.parametrize("level", LEVELS)
def test_a_cache_over_many_calls(level):
    def append(h, cache):
        cache["h"] = torch.cat([cache["h"], h.to(cache["h"].dtype)])

    model, _ = initialized(level, Net(append))
    cache = {"h": torch.zeros(1, 4)}
    for _ in range(3):
        model(torch.ones(1, 4), cache)
    assert cache["h"].shape == (4, 4) and torch.equal(cache["h"][1], cache["h"][3])


# Arguments that cannot be written.

UNWRITABLE = {
    "leaf": lambda: torch.zeros(1, 4, requires_grad=True),
    "expanded": lambda: torch.zeros(1, 1).expand(1, 4),
}
MESSAGE = (
    "forward: expected to write its argument 'memory' back to the caller's tensor, got one that "
    "cannot be written and stays as it was: {}; return the new value from forward instead"
)
REASONS = {
    "leaf": "a leaf Variable that requires grad is being used in an in-place operation.",
    "expanded": "unsupported operation: more than one element of the written-to tensor refers to "
    "a single memory location. Please clone() the tensor before performing the operation.",
}


@pytest.mark.parametrize("wrap", [lambda memory: memory, lambda memory: [{"deep": memory}]])
@pytest.mark.parametrize("kind", UNWRITABLE)
@pytest.mark.parametrize("level", ["O2", "O5"])
def test_one_warning_names_the_argument(level, kind, wrap):
    def write(h, memory):
        fill(h, memory if isinstance(memory, torch.Tensor) else memory[0]["deep"])

    model, _ = initialized(level, Net(write))
    memory = UNWRITABLE[kind]()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            model(torch.ones(1, 4), memory=wrap(memory))
            model(torch.ones(1, 4), wrap(memory))
    assert {str(each.message) for each in seen} == {MESSAGE.format(REASONS[kind])}
    assert len(seen) == 2 and seen[0].filename == __file__, "one a line"
    assert not memory.any()


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_its_remedy(level):
    model, _ = initialized(level, Returning())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model(torch.ones(1, 4), UNWRITABLE["leaf"]()).any()


def test_the_name_of_a_sequentials_argument():
    model, _ = initialized("O2", nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)))
    message = re.escape(MESSAGE.format(REASONS["leaf"]).replace("'memory'", "'input'"))
    with pytest.warns(UserWarning, match=f"^{message}$"):
        model(torch.full((1, 4), -1.0, requires_grad=True))

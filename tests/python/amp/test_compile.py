"""torch.compile and torch.export of models that initialize returned: one graph, eager's numbers."""

import collections
import dataclasses
import gc
import itertools
import shutil

import pytest
import torch
from nets import (
    LEVELS,
    MASTER_LEVELS,
    backward,
    batch,
    changed,
    everything,
    initialized,
    linear_net,
    sgd,
    train_step,
)
from torch import nn

from torchamp import Amp, amp

O1_LEVELS = {"O1": torch.float16, "O4": torch.bfloat16}
Pair = collections.namedtuple("Pair", "first second")


class Counter:
    """A backend that runs graphs as they are, and counts them and their calls."""

    def __init__(self):
        self.graphs = self.calls = 0

    def __call__(self, graph_module, example_inputs):
        self.graphs += 1
        self.calls += sum(node.op.startswith("call_") for node in graph_module.graph.nodes)
        return graph_module.forward


@pytest.fixture(autouse=True)
def _forget_graphs():
    """And what they keep alive: O1 ends with its models."""
    yield
    torch._dynamo.reset()
    gc.collect()


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)
    )


def captured(model, *args, **options):
    """What the compiled model returns, and the Counter of its graphs."""
    counter = Counter()
    return torch.compile(model, backend=counter, **options)(*args), counter


def assert_one_graph(model, expected, *args, **kwargs):
    """Which gives what is expected."""
    counter = Counter()
    assert_same(torch.compile(model, backend=counter, fullgraph=True)(*args, **kwargs), expected)
    assert counter.graphs == 1


def assert_same(result, expected):
    assert type(result) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert result.dtype == expected.dtype and torch.equal(result, expected)
    elif isinstance(expected, dict):
        assert_same(list(result.items()), list(expected.items()))
    elif isinstance(expected, (list, tuple)):
        assert len(result) == len(expected)
        for one, other in zip(result, expected):
            assert_same(one, other)
    else:
        assert result == expected


# One graph.


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("level", LEVELS)
def test_one_graph_has_the_whole_forward(level, dynamic):
    model, _ = initialized(level, net())
    x, _ = batch()
    _, plain = captured(net(), x, dynamic=dynamic)
    torch._dynamo.reset()
    expected = model(x)
    result, counter = captured(model, x, fullgraph=True, dynamic=dynamic)
    assert_same(result, expected)
    assert counter.graphs == 1
    assert plain.calls <= counter.calls <= plain.calls + 2  # the casts of input and output


@pytest.mark.parametrize("level", LEVELS)
def test_batches_of_other_sizes_compile_once_more_at_most(level):
    model, _ = initialized(level, linear_net())
    counter = Counter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for rows in (16, 7, 5):
        x = torch.randn(rows, 4)
        assert_same(compiled(x), model(x))
    assert counter.graphs == 1


class Structured(nn.Module):
    """Takes and returns tensors in containers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch, pair, *, mask=None, more=()):
        first = self.layer(batch["x"])
        outputs = collections.OrderedDict(first=first, second=[self.layer(pair.second)])
        return {"outputs": outputs, "pair": Pair(first, len(more)), "mask": mask}


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
def test_containers_of_tensors_are_cast_in_the_graph(level):
    model, _ = initialized(level, Structured())
    x, _ = batch()
    arguments = {"batch": {"x": x, "n": 3}, "pair": Pair(None, x), "more": [x, [x]]}
    assert_one_graph(model, model(**arguments), **arguments)


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    target: torch.Tensor


class Slotted:
    """A batch, by its `to`, with slots."""

    __slots__ = ("target", "x")

    def __init__(self, x, target):
        self.x, self.target = x, target

    def to(self, device):
        raise AssertionError


class TakesSamples(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, sample):
        return Sample(self.layer(sample.x), sample.target)


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="Dynamo asks no object for its attributes")
@pytest.mark.parametrize("kind", [Sample, Slotted])
@pytest.mark.parametrize("level", LEVELS)
def test_batch_objects_are_cast_in_the_graph(level, kind):
    model, _ = initialized(level, TakesSamples())
    counter = Counter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for seed in range(3):
        x, target = batch(seed)
        expected, result = model(kind(x, target)), compiled(kind(x, target))
        assert_same((result.x, result.target), (expected.x, expected.target))
    assert counter.graphs == 1 and x.dtype == torch.float32


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("level", LEVELS)
def test_exported_after_a_step(level, strict):
    model, optimizer = initialized(level, net())
    train_step(model, optimizer)
    grads = [param.grad for param in model.parameters()]
    model.eval()
    x, _ = batch()
    if strict:  # Dynamo's, which takes no grads of another dtype
        model.zero_grad()
    program = torch.export.export(model, (x,), strict=strict)
    assert_same(program.module()(x), model(x))
    assert strict or all(a.grad is b for a, b in zip(model.parameters(), grads))


# Numbers.


def trained(level, how=lambda model: model):
    """What three steps make of a model that `how` compiles."""
    torch.manual_seed(0)
    model, optimizer = initialized(level, net())
    compiled = how(model)
    for seed in range(3):
        train_step(compiled, optimizer, seed)
    return everything(model, optimizer)


@pytest.mark.parametrize(
    "level, backend, dynamic",
    [
        *[(level, "eager", False) for level in LEVELS],
        ("O2", "aot_eager", True),
        *[
            pytest.param(level, "aot_eager", dynamic, marks=pytest.mark.soak)
            for level, dynamic in itertools.product(LEVELS, (False, True))
            if (level, dynamic) != ("O2", True)
        ],
    ],
)
def test_training_gives_the_numbers_of_eager(level, backend, dynamic):
    def compile(model):
        return torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)

    assert not changed(trained(level), trained(level, compile))


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a compiler")
@torch._inductor.config.patch(compile_threads=1)
def test_a_step_under_inductor():
    results = []
    for how in (torch.compile, lambda model: model):
        torch.manual_seed(0)
        model, optimizer = initialized("O5", linear_net())
        train_step(how(model), optimizer)
        results.append(everything(model, optimizer))
    torch.testing.assert_close(*results, rtol=0.02, atol=1e-3)


def with_written_masters(level):
    """A model, the same compiled, and its optimizer, whose masters have been written."""
    model, optimizer = initialized(level, linear_net(), lambda m: sgd(m, lr=0.0))
    compiled = torch.compile(model, backend=Counter())
    train_step(compiled, optimizer)
    backward(compiled, optimizer)
    with torch.no_grad():
        for master in amp.master_params(optimizer):
            master.fill_(0.5)
    return model, compiled, optimizer


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_step_finds_written_masters(level):
    model, _, optimizer = with_written_masters(level)
    optimizer.step()
    assert all((param == 0.5).all() for param in model.parameters())


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_state_dict_brings_written_masters_to_a_compiled_model(level):
    model, compiled, optimizer = with_written_masters(level)
    model.state_dict()
    x, _ = batch()
    assert_same(compiled(x), model(x))
    assert all((param == 0.5).all() for param in model.parameters())
    train_step(compiled, optimizer)


# Autocast around a compiled model.


def test_the_casts_of_another_model_are_left_out():
    model, _ = initialized("O2", net())
    x, _ = batch()
    expected = model(x)
    with Amp(linear_net(), opt_level="O1", verbosity=0):
        assert_one_graph(model, expected, x)


@pytest.mark.skipif(torch.__version__ < (2, 7), reason="Dynamo keeps graphs of another dtype")
def test_a_graph_holds_for_the_autocast_that_it_was_captured_under():
    model, _ = initialized("O0", linear_net())
    x, _ = batch()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with Amp(linear_net(), opt_level="O4", verbosity=0):
        assert_same(compiled(x), model(x))
        with torch.autocast("cpu", torch.float16):
            assert_same(compiled(x), model(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(compiled(x), model(x))
    assert_same(compiled(x), model(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("level", O1_LEVELS)
def test_casts_can_be_switched_off(level, backend):
    model, optimizer = initialized(level, linear_net())
    x, _ = batch()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert_same(compiled(x), model(x))
    assert compiled(x).dtype == O1_LEVELS[level]
    with amp.disable_casts():
        assert compiled(x).dtype == torch.float32


def test_o1_casts_a_compiled_function_outside_of_a_model():
    with Amp(linear_net(), opt_level="O1", verbosity=0):
        compiled = torch.compile(
            lambda x: nn.functional.softplus(x @ x).std(), backend="aot_eager", fullgraph=True
        )
        assert compiled(torch.randn(3, 3)).dtype == torch.float32

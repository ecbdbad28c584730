"""Copies of weights and inputs: cast once, and never used after a write."""

import contextlib
import copy

import pytest
import torch
from nets import adam, fused_adam, sgd
from products import LEVELS, Blocks, casts, counted, in_float8, linear
from stand_in_graphs import Recorded, graphs_of
from torch import nn

from torchamp import amp
from torchamp.amp import _graphed

X, TARGET = torch.linspace(-2, 2, 8 * 32).view(8, 32).sin(), torch.arange(8) % 5


def fresh(model, x):
    """What a model that has never computed gives with the same weights."""
    level = model._torchamp.session.settings.properties.opt_level
    other, optimizer = in_float8(level, Blocks())
    other.load_state_dict(model.state_dict())
    return other(x)


def loss_of(model, x=X):
    return nn.functional.cross_entropy(model(x), TARGET)


def step(model, optimizer, x=X) -> None:
    optimizer.zero_grad()
    with amp.scale_loss(loss_of(model, x), optimizer) as scaled:
        scaled.backward()
    optimizer.step()


@pytest.mark.parametrize("level", LEVELS)
def test_weights_are_cast_once_an_iteration(level):
    model, optimizer = in_float8(level, Blocks())
    assert casts(lambda: loss_of(model).backward()) == 2 + 2 + 2  # weights, inputs, grads
    assert casts(lambda: loss_of(model).backward()) == 2 + 2
    step(model, optimizer)
    assert casts(lambda: loss_of(model).backward()) == 2 + 2 + 2
    with torch.no_grad():
        assert casts(lambda: (model(X), model(X))) == 2 + (2 + 2)  # the first has what trained
    assert casts(lambda: loss_of(model).backward()) == 2 + 2 + 2


@pytest.mark.parametrize("level", LEVELS)
def test_an_input_of_several_linears_is_cast_once(level):
    class Gates(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(32, 48), nn.Linear(32, 48)

        def forward(self, x):
            first = self.gate(x) * self.up(x)
            x.mul_(2)
            return first + self.gate(x)

    model, _ = in_float8(level, nn.Sequential(Gates()), ["0"])
    dtype = torch.float32 if level == "O4" else torch.bfloat16
    assert casts(lambda: model[0](X.clone().to(dtype))) == 2 + 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer", [sgd, adam, fused_adam])
def test_steps_are_seen(level, optimizer):
    model, stepping = in_float8(level, Blocks(), optimizer=optimizer)
    for _ in range(3):
        before = model(X)
        step(model, stepping)
        assert not torch.equal(model(X), before)
        assert torch.equal(model(X), fresh(model, X))


class ByData(torch.optim.Optimizer):
    """Writes as programs did before torch 0.4."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.data.sub_(param.grad.data)


@pytest.mark.parametrize("level", LEVELS)
def test_steps_that_write_by_data_are_seen(level):
    model, optimizer = in_float8(level, Blocks(), optimizer=lambda m: ByData(m.parameters()))
    step(model, optimizer)
    assert torch.equal(model(X), fresh(model, X))


@pytest.mark.parametrize("level", LEVELS)
def test_writes_are_seen(level):
    model, optimizer = in_float8(level, Blocks())
    state = copy.deepcopy(model.state_dict())

    def write():
        with torch.no_grad():
            model.ff[0].weight.mul_(0.5)

    def replace():
        model.ff[0].weight.data = model.ff[0].weight.data * 3

    def load():
        model.load_state_dict(state)

    for change in (write, replace, load):
        before = model(X)
        change()
        found, count = counted(lambda: model(X))
        assert count == 2 and not torch.equal(found, before)
        assert torch.equal(found, fresh(model, X))


@pytest.mark.parametrize("level", LEVELS)
def test_memory_that_a_weight_has_left_is_of_no_weight(level):
    module, model = linear(level)
    old, x = module.weight.detach(), torch.randn(3, 64).to(module.weight.dtype)
    assert counted(lambda: nn.functional.linear(x, old))[1] == 1
    module.weight.data = module.weight.data.clone()
    assert counted(lambda: nn.functional.linear(x, old))[1] == 0
    model(x.float())
    assert counted(lambda: nn.functional.linear(x, old))[1] == 0
    assert counted(lambda: module(x))[1] == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_skipped_step_changes_nothing(level):
    model, optimizer = in_float8(level, Blocks(), loss_scale="dynamic")
    step(model, optimizer)
    before, weights = model(X), copy.deepcopy(model.state_dict())
    step(model, optimizer, X * float("inf"))
    assert torch.equal(model(X), before)
    assert all(map(torch.equal, model.state_dict().values(), weights.values()))


@pytest.mark.parametrize("level", LEVELS)
def test_micro_batches_add_up_and_tied_weights_get_both_grads(level):
    model, _ = in_float8(level, Blocks())
    halves = []
    for half in (X[:4], X[4:]):
        model.zero_grad()
        model(half).sum().backward()
        halves.append([p.grad.clone() for p in model.parameters()])
    model.zero_grad()
    for half in (X[:4], X[4:]):
        model(half).sum().backward()
    for param, one, other in zip(model.parameters(), *halves):
        assert torch.equal(param.grad, one + other)

    tied = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
    tied[1].weight = tied[0].weight
    tied, _ = in_float8(level, nn.Sequential(tied), ["0"])
    _, count = counted(lambda: tied(X).sum().backward())
    assert count == 2 + 1 + 2  # outputs, the grad of what is between, of the weight


@pytest.mark.parametrize("level", LEVELS)
def test_saved_tensors_may_be_kept_elsewhere(level):
    model, _ = in_float8(level, Blocks())
    loss_of(model).backward()
    right = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        loss = loss_of(model)
    loss.backward()
    assert all(map(torch.equal, right, (p.grad for p in model.parameters())))


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_saved_of_an_input_is_a_byte_an_element(level):
    module, model = linear(level)
    x = torch.randn(64, 64).to(module.weight.dtype).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        module(x)
    assert sorted(t.numel() * t.element_size() for t in saved) == [4, 4, 32 * 64, 64 * 64]


@pytest.mark.parametrize("level", LEVELS)
def test_a_resumed_run_takes_the_same_steps_and_files_do_not_know_of_float8(level, tmp_path):
    model, optimizer = in_float8(level, Blocks(), optimizer=adam)
    for _ in range(2):
        step(model, optimizer)
    amp.save(model, optimizer, tmp_path / "file")
    for _ in range(2):
        step(model, optimizer)
    resumed, its = in_float8(level, Blocks(), optimizer=adam)
    amp.load(resumed, its, tmp_path / "file")
    for _ in range(2):
        step(resumed, its)
    assert all(map(torch.equal, model.state_dict().values(), resumed.state_dict().values()))
    plain = Blocks()
    plain, its = amp.initialize(plain, adam(plain), opt_level=level, verbosity=0)
    amp.load(plain, its, tmp_path / "file")
    step(plain, its)
    amp.save(plain, its, tmp_path / "file")
    amp.load(model, optimizer, tmp_path / "file")
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    assert "float8" not in str(model.state_dict()) + str(optimizer.state_dict())


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_are_lent_in_float32_are_in_no_float8(level):
    model, _ = in_float8(level, Blocks(), optimizer=adam)
    with amp.float32_params(model):
        expected = 0 if level == "O5" else 2
        assert counted(lambda: model(X))[1] == expected
    assert counted(lambda: model(X))[1] == 2


@pytest.mark.parametrize("level", LEVELS)
def test_iterations_through_a_graph_are_the_eager_ones(level, monkeypatch):
    (model, optimizer), (other, its) = (
        in_float8(level, Blocks(), optimizer=fused_adam) for _ in range(2)
    )
    other.load_state_dict(model.state_dict())
    recorded = Recorded(lambda x: step(model, optimizer, x), model, optimizer)
    monkeypatch.setattr(_graphed._Graphed, "graphs_of", graphs_of(recorded))
    run = amp.graphed(recorded)
    for i in range(8):
        run(X * i)
        step(other, its, X * i)
        assert torch.equal(model(X), other(X))
    assert recorded.captures == 1
    amp.release(model)


@pytest.mark.parametrize("level", LEVELS)
def test_a_graph_has_the_casts_of_weights_and_what_replays_write_is_seen(level, monkeypatch):
    model, optimizer = in_float8(level, Blocks(), optimizer=fused_adam)

    class Halving:
        """In place of a graph: it halves the weights, and nothing tells the host."""

        device_type, aside = "cpu", contextlib.nullcontext

        def __init__(self, device: torch.device) -> None:
            pass

        @contextlib.contextmanager
        def capture(self):
            yield lambda: [param.data.mul_(0.5) for param in model.parameters()]

    monkeypatch.setattr(_graphed._Graphed, "graphs_of", Halving)
    run = amp.graphed(lambda x: step(model, optimizer, x))
    for _ in range(3):
        run(X)
    model(X)  # leaves copies
    assert casts(lambda: run(X)) == 2 + 2 + 2
    for _ in range(2):
        assert casts(lambda: model(X)) == 2 + 2
        run(X)
    amp.release(model)

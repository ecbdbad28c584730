"""A program may change `optimizer.state` and the groups between steps: fused optimizers take it as
torch's do."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from nets import batch, linear_net, master_values, train_step

from torchamp import amp, optimizers
from torchamp._load import _C

FUSED = {
    "adam": lambda params: optimizers.FusedAdam(params, lr=0.01),
    "adamw": lambda params: optimizers.FusedAdamW(params, lr=0.01),
    "sgd": lambda params: optimizers.FusedSGD(params, lr=0.01, momentum=0.5),
    "plain_sgd": lambda params: optimizers.FusedSGD(params, lr=0.01),
    "lamb": lambda params: optimizers.FusedLAMB(params, lr=0.01),
    "novograd": lambda params: optimizers.FusedNovoGrad(params, lr=0.01),
}
TORCH = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.5),
}
LEVELS = ["O0", "O2"]


class Run:
    """One net in training."""

    def __init__(self, make: Callable, level: str) -> None:
        torch.manual_seed(2)
        self.model = linear_net()
        self.optimizer = make(self.model.parameters())
        amp.initialize(self.model, self.optimizer, opt_level=level, loss_scale=64.0, verbosity=0)
        self.seed = 0

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            train_step(self.model, self.optimizer, self.seed)
            self.seed += 1
        return self

    @property
    def entry(self) -> dict:
        """The state of the first parameter."""
        return next(iter(self.optimizer.state.values()))

    def values(self) -> list[torch.Tensor]:
        return master_values(self.optimizer)


def assert_close(one: Run, other: Run) -> None:
    torch.testing.assert_close(one.values(), other.values(), rtol=1e-4, atol=1e-5)


def clear(run: Run) -> None:
    run.optimizer.state.clear()


def replace_dict(run: Run) -> None:
    run.optimizer.state = defaultdict(dict)


def pop_all(run: Run) -> None:
    for param in list(run.optimizer.state):
        run.optimizer.state.pop(param)


def empty_entries(run: Run) -> None:
    for entry in run.optimizer.state.values():
        entry.clear()


@pytest.mark.parametrize("forget", [clear, replace_dict, pop_all, empty_entries])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FUSED)
def test_without_state_an_optimizer_starts_anew(name, level, forget):
    changed, loaded = (Run(FUSED[name], level).train(3) for _ in range(2))
    forget(changed)
    loaded.optimizer.load_state_dict(Run(FUSED[name], level).optimizer.state_dict())
    for run in (changed, loaded):
        run.train(2)
    assert all(map(torch.equal, changed.values(), loaded.values()))


def pop_one(run: Run) -> None:
    run.optimizer.state.pop(next(iter(run.optimizer.state)))


def pop_momentum(run: Run) -> None:
    run.entry.pop("momentum_buffer", None)


def halve_the_moments(run: Run) -> None:
    for entry in run.optimizer.state.values():
        for name in entry.keys() & {"exp_avg", "momentum_buffer"}:
            entry[name] = entry[name] / 2


def exchange_memory(run: Run) -> None:
    for entry in run.optimizer.state.values():
        for name in entry.keys() & {"exp_avg", "momentum_buffer"}:
            entry[name].data = entry[name] / 2


def start_counting_again(run: Run) -> None:
    for entry in run.optimizer.state.values():
        if "step" in entry:
            entry["step"] = torch.zeros_like(entry["step"])


def count_in_place(run: Run) -> None:
    for entry in run.optimizer.state.values():
        if "step" in entry:
            entry["step"].fill_(7)


def replace_entry(run: Run) -> None:
    param = next(iter(run.optimizer.state))
    run.optimizer.state[param] = {
        name: value * 3 if isinstance(value, torch.Tensor) else value
        for name, value in run.entry.items()
    }


def switch_lr_off(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = torch.tensor(0.02)
    run.train(1)
    run.optimizer.param_groups[0]["lr"] = 0.0


def keep_lr_tensor(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = torch.tensor(0.02)


CHANGES = (
    pop_one,
    pop_momentum,
    halve_the_moments,
    exchange_memory,
    start_counting_again,
    count_in_place,
    replace_entry,
    switch_lr_off,
    keep_lr_tensor,
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TORCH)
def test_changes_act_as_on_torch_s(name, level, change):
    if name == "sgd" and change in (start_counting_again, count_in_place):
        pytest.skip("torch's SGD does not count")
    runs = [Run(make[name], level).train(3) for make in (FUSED, TORCH)]
    for run in runs:
        change(run)
        run.train(2)
    assert_close(*runs)


def test_changes_count_in_a_state_dict_too():
    run = Run(FUSED["adam"], "O0").train(2)
    run.optimizer.state.clear()
    assert run.optimizer.state_dict()["state"] == {}
    run.train(1)
    assert {float(entry["step"]) for entry in run.optimizer.state.values()} == {1.0}


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("makers", [FUSED, TORCH], ids=["fused", "torch"])
def test_zeros_move_the_momentum_of_what_a_backward_does_not_reach(
    makers, name, level, set_to_none
):
    moved = []
    for each in ("O0", level):
        run = Run(makers[name], each).train(2)
        before = run.values()
        run.optimizer.zero_grad(set_to_none=set_to_none)
        loss = run.model[2].bias.float().sum()
        amp.scale_loss(loss, run.optimizer).backward()
        run.optimizer.step()
        moved.append([not torch.equal(a, b) for a, b in zip(before, run.values())])
    assert moved[0] == moved[1] == [not set_to_none] * 3 + [True]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_states_made_before_initialize_fit_what_is_stepped(level, fused):
    model = linear_net()
    if level == "O5":
        model = model.bfloat16()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, fused=fused)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for _ in range(2):
        optimizer.zero_grad()
        amp.scale_loss(model(batch()[0]).float().sum(), optimizer).backward()
        optimizer.step()
    for param, stepped in zip(model.parameters(), amp.master_params(optimizer)):
        expected = stepped.dtype if fused else torch.float32
        assert optimizer.state[param]["sum"].dtype == expected


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("name", TORCH)
def test_training_goes_on_at_a_level_from_float32(name, level):
    model = linear_net()
    optimizer = TORCH[name](model.parameters())
    model(batch()[0]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    amp.scale_loss(model(batch()[0]).float().sum(), optimizer).backward()
    optimizer.step()
    before = optimizer.state_dict()
    optimizer.load_state_dict(copy.deepcopy(before))
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


WRITES = {
    "replace": lambda entry: entry.update(sum=object()),
    "insert": lambda entry: entry.update(other=1),
    "delete": lambda entry: entry.pop("sum"),
    "rename": lambda entry: entry.update(total=entry.pop("sum")),
    "swap": lambda entry: entry.update(step=entry["sum"], sum=entry["step"]),
    "merge": lambda entry: entry.__ior__({"sum": object()}),
    "empty": lambda entry: entry.clear(),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_write_to_a_state_is_seen(write: str) -> None:
    state = {object(): {"step": object(), "sum": object()} for _ in range(3)}
    seen = _C.StateSnapshot(state)
    copy.deepcopy(list(state.values()))  # reads
    assert seen.is_still(state)
    WRITES[write](list(state.values())[1])
    assert not seen.is_still(state)
    assert _C.StateSnapshot(state).is_still(state)

"""What programs edit between calls is what counts: groups, grads, masters and the model, each as
the same program does it in plain float32."""

from __future__ import annotations

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, overflow_at
from torch import nn

from torchamp import amp, optimizers

MAKERS = {"torch": torch.optim.SGD, "fused": optimizers.FusedSGD}


class Net(nn.Module):
    """Its loss's grads are powers of two, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        for param in self.parameters():
            nn.init.constant_(param, 0.5)

    def forward(self, factor: float) -> torch.Tensor:
        return factor * sum(param.float().sum() for param in self.parameters())


class Program:
    """One that trains at a level, or in plain float32."""

    def __init__(
        self, level: str | None, make: str = "torch", count: int = 2, **options: bool
    ) -> None:
        self.model = Net()
        self.optimizer = MAKERS[make](self.model.layers[:count].parameters(), lr=0.25)
        self.level = level
        if level is not None:
            options = {"loss_scale": "dynamic", "verbosity": 0, **options}
            amp.initialize(self.model, self.optimizer, opt_level=level, **options)

    @property
    def params(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    @property
    def group(self) -> dict:
        return self.optimizer.param_groups[0]

    def backward(self, factor: float = 0.25, loss: torch.Tensor | None = None) -> None:
        loss = self.model(factor) if loss is None else loss
        if self.level is None:
            loss.backward()
            return
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()

    def step(self, edit=lambda program: None) -> None:
        self.optimizer.zero_grad()
        self.model.zero_grad()
        self.backward()
        edit(self)
        self.optimizer.step()

    def values(self) -> list[torch.Tensor]:
        return [value.float().clone() for value in self.model.state_dict().values()]


def expect_alike(level: str, make: str, *edits, before: bool = False) -> None:
    """Each edit before a backward, or between backward and step."""
    ours, plain = Program(level, make), Program(None, make)
    for edit in edits:
        for program in (ours, plain):
            if before:
                edit(program)
                program.step()
            else:
                program.step(edit)
        for value, expected in zip(ours.values(), plain.values()):
            torch.testing.assert_close(value, expected, rtol=0, atol=2e-3)  # of 16-bit grads
    amp.release(ours.model)


# ---- groups


def append(program):
    program.group["params"].append(program.params[-1])


def pop(program):
    program.popped = program.group["params"].pop(0)


def give_back(program):
    program.group["params"].append(program.popped)


def pop_group(program):
    program.groups = [program.optimizer.param_groups.pop()]
    program.optimizer.param_groups.append({**program.groups[0], "params": program.params[:1]})


def add_group(program):
    left = [p for p in program.params[:4] if p is not program.params[0]]
    program.optimizer.add_param_group({"params": left})


def assign(program):
    program.group["params"] = program.params


def assign_trainable(program):
    program.params[0].requires_grad_(False)
    program.group["params"] = [p for p in program.params if p.requires_grad]


def replace(program):
    layer = program.model.layers[0]
    layer.bias = nn.Parameter(torch.full_like(layer.bias, 2.0))
    program.group["params"] = program.params


def make_again(program):
    kind = type(program.optimizer)
    kind.__init__(program.optimizer, program.params, lr=0.25)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "edits",
    [
        (append, pop),
        (pop, give_back),
        (pop_group, add_group),
        (assign, pop, assign),
        (assign_trainable,),
        (replace,),
        (make_again,),
    ],
    ids=lambda edits: " ".join(edit.__name__ for edit in edits),
)
def test_edited_groups_are_what_is_stepped(level, make, edits):
    expect_alike(level, make, *edits, before=True)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_overflow_of_a_removed_parameter_skips_nobody(level, make):
    program = Program(level, make)
    program.params[0].register_hook(lambda grad: grad * float("inf"))
    before = program.values()
    program.backward()
    program.group["params"].pop(0)
    program.optimizer.step()
    assert not torch.equal(program.values()[1], before[1])
    amp.release(program.model)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_parameter_that_returns_has_its_master_again(level):
    program = Program(level)
    master = program.group["params"][0]
    pop(program)
    program.step()
    program.group["params"].append(program.params[0])
    program.step()
    assert program.group["params"][-1] is master


def test_a_parameter_twice_is_refused():
    program = Program("O2")
    program.group["params"].append(program.params[0])
    with pytest.raises(ValueError) as refused:
        program.optimizer.step()
    assert str(refused.value) == (
        "step: expected each parameter in one group, and once, got one of sizes [2, 2] twice"
    )


# ---- grads


def clip(program):
    torch.nn.utils.clip_grad_norm_(program.params[:4], 0.125)


def clamp_data(program):
    for param in program.params:
        if param.grad is not None:
            param.grad.data.clamp_(-0.0625, 0.0625)


def mask(program):
    program.params[0].grad = torch.zeros_like(program.params[0])


def assign_half(program):
    grad = torch.full_like(program.params[1], 0.5)
    program.params[1].grad = grad


def negate(program):
    program.params[0].grad.neg_()


def zero_in_place(program):
    program.params[0].grad.zero_()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("edit", [clip, clamp_data, mask, assign_half, negate, zero_in_place])
def test_the_models_grads_are_what_is_stepped(level, edit, make):
    expect_alike(level, make, edit, edit)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_step_pre_hooks_write_what_is_stepped(level, make):
    def halve(optimizer, args, kwargs):
        for param in optimizer.param_groups[0]["params"]:
            param.grad.mul_(0.5)

    ours, plain = Program(level, make), Program(None, make)
    for program in (ours, plain):
        program.optimizer.register_step_pre_hook(halve)
        program.step()
    for value, expected in zip(ours.values(), plain.values()):
        torch.testing.assert_close(value, expected, rtol=0, atol=2e-3)
    amp.release(ours.model)


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("edit", [clip, mask, assign_half, negate])
def test_what_a_fused_step_would_scale_is_told(level, edit):
    program = Program(level, "fused", materialize_master_grads=False)
    with pytest.raises(RuntimeError) as refused:
        program.step(edit)
    assert str(refused.value) in {
        f"expected the grad of a model's parameter, of sizes {sizes}, to be unmodified since "
        "scale_loss, which with materialize_master_grads=False leaves it scaled, got a modified "
        "one; clip with amp.clip_grad_norm_, or modify the grads of amp.master_params"
        for sizes in ([2, 2], [2])
    }
    program.optimizer.zero_grad()
    list(amp.master_params(program.optimizer))  # as it says
    program.step(negate)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_backward_outside_of_scale_loss_counts_unscaled(level, make):
    def outside(program):
        program.model(0.5).backward()

    expect_alike(level, make, outside)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "O3"])  # inf in 16 bits
def test_losses_of_masters_count(level, make):
    ours, plain = Program(level, make), Program(None, make)
    for is_alone in (False, True):
        for program in (ours, plain):
            program.optimizer.zero_grad()
            program.model.zero_grad()
            loss = 0.5 * sum(each.sum() for each in amp.master_params(program.optimizer))
            program.backward(0.25, loss if is_alone else loss + program.model(0.25))
            program.optimizer.step()
        for value, expected in zip(ours.values(), plain.values()):
            torch.testing.assert_close(value, expected, rtol=0, atol=2e-3)
    amp.release(ours.model)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", ["O2", "O5"])
def test_penalties_on_the_way_that_masters_have_gone_count(level, make):
    """As of L2-SP, EWC and FedProx, here of a way that 16 bits round away."""
    ours, plain = Program(level, make), Program(None, make)
    for program in (ours, plain):
        params = list(amp.master_params(program.optimizer))
        start = [param.detach().clone() for param in params]
        with torch.no_grad():
            for param in params:
                param.mul_(1 + 2**-14)
        away = [param - old for param, old in zip(params, start)]
        program.backward(0.25, 2**12 * sum(each.square().sum() for each in away))
        program.optimizer.step()
    for value, expected in zip(ours.values(), plain.values()):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    amp.release(ours.model)


def put_on_masters(program):
    for master in amp.master_params(program.optimizer):
        master.grad = torch.full_like(master, 0.5)


def put_where_none_are(program):
    program.optimizer.zero_grad()
    put_on_masters(program)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_grads_that_a_program_puts_on_masters_count(level, make):
    expect_alike(level, make, put_on_masters, put_where_none_are)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_another_grad_in_place_of_a_delayed_one_is_told(level, make):
    program = Program(level, make)
    with amp.scale_loss(program.model(0.25), program.optimizer, delay_unscale=True) as scaled_loss:
        scaled_loss.backward()
    program.params[0].grad = program.params[0].grad.clone()
    with pytest.raises(RuntimeError) as told:
        program.backward()
    assert str(told.value) == (
        "expected grads that delay_unscale has left scaled to be modified in place, or zeroed by "
        "zero_grad(), got another grad of a parameter of sizes [2, 2], which may not be scaled; "
        "call the optimizer's zero_grad()"
    )
    program.step()  # which begins with it
    amp.release(program.model)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_backward_onto_grads_of_a_skipped_step_is_told(level, make):
    program = Program(level, make)
    with overflow_at(program.params[0]):
        program.backward()
    program.optimizer.step()
    program.model(0.25).backward()
    with pytest.raises(RuntimeError) as told:
        program.optimizer.step()
    assert str(told.value) == (
        "expected the grads that a skipped step has left to be zeroed before a backward outside of "
        "scale_loss, got one, of sizes [2, 2], that was added to grads that are not finite; call "
        "the optimizer's zero_grad()"
    )
    program.step()  # which begins with it
    amp.release(program.model)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_grad_from_before_its_group_is_told(level):
    program = Program(level)
    program.step()
    program.model(0.25).backward()
    with pytest.warns(UserWarning) as told:
        program.optimizer.add_param_group({"params": program.params[4:]})
    assert str(told[0].message) == (
        "add_param_group: expected a parameter to be in a group when its backward runs in "
        "scale_loss, got one that was added with a grad, which may be scaled, and is dropped; add "
        "parameters before their backward"
    )
    amp.release(program.model)


@pytest.mark.parametrize("level", LEVELS)
def test_zeros_by_the_model_end_an_overflow(level):
    program = Program(level)
    hook = program.params[0].register_hook(lambda grad: grad * float("inf"))
    program.backward()
    hook.remove()
    program.model.zero_grad(set_to_none=False)
    before = program.values()
    program.backward()
    program.optimizer.step()
    assert not torch.equal(program.values()[0], before[0])
    amp.release(program.model)


# ---- masters and the model


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_written_masters_reach_every_reader(level, make):
    program = Program(level, make)

    def write(value):
        with torch.no_grad():
            for param in amp.master_params(program.optimizer):
                param.fill_(value)

    write(3.0)
    assert program.model(1.0).item() == 3.0 * 12 + 0.5 * 6
    write(5.0)
    assert (program.model.state_dict()["layers.0.weight"] == 5).all()
    write(7.0)
    program.backward()
    assert (program.params[0] == 7).all()
    amp.release(program.model)


@pytest.mark.parametrize("level", LEVELS)
def test_the_later_write_of_model_and_masters_wins(level):
    program = Program(level)
    with torch.no_grad():
        program.params[0].fill_(3.0)
        master = next(iter(amp.master_params(program.optimizer)))
        assert (master == 3).all()
        master.fill_(5.0)
    program.model(1.0)
    assert (program.params[0] == 5).all()
    amp.release(program.model)


def test_stochastic_rounding_without_momentum_resumes():
    def trained(program, steps):
        for _ in range(steps):
            program.step()

    def make():
        model = Net()
        optimizer = optimizers.FusedSGD(model.parameters(), lr=2.0**-12, stochastic_rounding=True)
        program = Program.__new__(Program)
        program.model, program.optimizer, program.level = model, optimizer, "O5"
        amp.initialize(model, optimizer, opt_level="O5", master_weights=False, verbosity=0)
        return program

    whole, first, second = make(), make(), make()
    trained(whole, 8)
    trained(first, 4)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    trained(second, 4)
    assert all(map(torch.equal, whole.values(), second.values()))

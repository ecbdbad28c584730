"""Optimizers that hooks step in the backward: as after it, or an error that changes nothing; and
optimizers that no backward reaches."""

import pytest
import torch
from nets import LEVELS, backward, changed, linear_net, loss_of, warned
from torch.distributed.optim import _apply_optimizer_in_backward

import torchamp
from torchamp import amp, optimizers

MAKERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.5),
    "torch's fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "fused": lambda params: optimizers.FusedAdamW(params, lr=0.01),
}
#: The levels that neither scale the loss nor keep masters.
PLAIN = ("O0", "O3", "O4")


STARTED: list = []


@pytest.fixture(autouse=True)
def _released():
    """Hooks make cycles, which keep O1's casts."""
    yield
    while STARTED:
        amp.release(STARTED.pop())


def start(level, make, **options):
    """A model with an optimizer for each parameter."""
    torch.manual_seed(0)
    model = linear_net()
    each = [make([param]) for param in model.parameters()]
    amp.initialize(model, each, opt_level=level, verbosity=0, **options)
    STARTED.append(model)
    return model, each


def step_in_backward(model, each) -> None:
    for param, optimizer in zip(model.parameters(), each):

        def hook(param, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        param.register_post_accumulate_grad_hook(hook)


def trained_after_it(level, make) -> dict:
    model, each = start(level, make)
    for seed in range(3):
        backward(model, each, seed)
        for optimizer in each:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("level", PLAIN)
def test_hooks_step_where_grads_need_no_unscaling(level, make):
    model, each = start(level, make)
    step_in_backward(model, each)
    for seed in range(3):
        backward(model, each, seed)
    assert not changed(model.state_dict(), trained_after_it(level, make))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    ("level", "options"),
    [
        *((level, {}) for level in LEVELS if level not in PLAIN),
        *((level, {"loss_scale": scale}) for level in PLAIN for scale in (128.0, "dynamic")),
    ],
)
def test_elsewhere_they_raise_and_change_nothing(level, options, make):
    model, each = start(level, make, **options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scale = amp.state_dict()
    step_in_backward(model, each)
    with pytest.raises(RuntimeError, match="step: expected the optimizer not to be inside an open"):
        backward(model, each, 0)
    assert not changed(model.state_dict(), before)
    assert amp.state_dict() == scale
    assert all(param.grad is None for param in model.parameters())


@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_casts_refuse_torchs_in_backward_optimizers(level):
    model = linear_net()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.125})
    with pytest.raises(RuntimeError, match=r"initialize: expected parameter '0.weight' of models"):
        amp.initialize(model, opt_level=level, verbosity=0)
    assert {param.dtype for param in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("level", ["O0", "O4"])
def test_torchs_in_backward_optimizers_step(level):
    torch.manual_seed(0)
    model = linear_net()
    _apply_optimizer_in_backward(
        torch.optim.SGD, model.parameters(), {"lr": 0.125, "momentum": 0.5}
    )
    each = [optimizer for p in model.parameters() for optimizer in p._in_backward_optimizers]
    amp.initialize(model, each, opt_level=level, verbosity=0)
    for seed in range(3):
        backward(model, each, seed)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    amp.release(model)
    assert not changed(trained, trained_after_it(level, MAKERS["sgd"]))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_an_optimizer_that_gets_no_grads_is_told_once(level, make):
    models = [linear_net(), linear_net()]
    both = [make(model.parameters()) for model in models]
    amp.initialize(models, both, opt_level=level, verbosity=0)
    STARTED.append(models)
    told = []
    for seed in range(3):
        backward(models[0], both, seed)
        with warned() as texts:
            for optimizer in both:
                optimizer.step()
        told.append(texts)
    assert told[1:] == [[], []]
    (only,) = told[0]
    assert only.startswith("step: expected grads, got none, so nothing changes")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_grad_scaler_refuses_an_optimizer_that_gets_no_grads(make):
    scaler, reached, other = torchamp.GradScaler("cpu"), linear_net(), linear_net()
    optimizer = make(other.parameters())
    scaler.scale(loss_of(reached)).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded|expected checked grads"):
        scaler.step(optimizer)
        scaler.update()

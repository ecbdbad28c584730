"""Several losses, models and optimizers against hand-written float32 masters, with an overflow in
each position; and the loss scale over ten thousand steps against apex's rule."""

import random

import pytest
import torch
from nets import Net, adam, batch, linear_net, overflow_at, sgd
from reference.loss_scaler import LossScaler as ReferenceScaler
from reference.trainer import Trained
from reference.trainer import backward as reference_backward
from torch import nn

from torchamp import amp

DTYPES = {"O0": torch.float32, "O2": torch.float16, "O5": torch.bfloat16}

#: The model of each of the three losses.
LOSSES = [(0,), (0, 1), (1,)]
NAMES = [name for name, _ in Net().named_parameters()]
POSITIONS = [
    (loss_id, model, name) for loss_id, of in enumerate(LOSSES) for model in of for name in NAMES
]


def loss_of(models, of: tuple[int, ...], seed: int) -> torch.Tensor:
    x, target = batch(seed)
    return nn.functional.cross_entropy(sum(models[i](x).float() for i in of), target)


def iterate(models, modules, overflow, backward, zero_grad, step) -> None:
    """Five iterations: the first model steps before the last loss; the third iteration overflows
    in the position `overflow`."""
    for i in range(5):
        zero_grad()
        for loss_id, of in enumerate(LOSSES):
            if loss_id == 2:
                step(0)
            planted_loss, model, name = overflow
            here = i == 2 and loss_id == planted_loss
            param = dict(modules[model].named_parameters())[name]
            with overflow_at(param, float("nan") if here else 0.0):
                backward(loss_of(models, of, 10 * i + loss_id), of, loss_id)
        step(1)


def run_amp(level: str, make, overflow):
    torch.manual_seed(5)
    models = [Net(), Net()]
    optimizers = [make(model) for model in models]
    models, optimizers = amp.initialize(
        models, optimizers, opt_level=level, loss_scale="dynamic", num_losses=3, verbosity=0
    )

    def backward(loss, of, loss_id):
        with amp.scale_loss(loss, [optimizers[i] for i in of], loss_id) as scaled_loss:
            scaled_loss.backward()

    def zero_grad():
        for optimizer in optimizers:
            optimizer.zero_grad()

    iterate(models, models, overflow, backward, zero_grad, lambda i: optimizers[i].step())
    scales = [entry["loss_scale"] for entry in amp.state_dict().values()]
    masters = [[*amp.master_params(optimizer)] for optimizer in optimizers]
    return scales, masters, [[*model.parameters()] for model in models]


def run_by_hand(level: str, make, overflow):
    torch.manual_seed(5)
    trained = [Trained(model, make, DTYPES[level]) for model in (Net(), Net())]
    scalers = [ReferenceScaler() for _ in LOSSES]

    def backward(loss, of, loss_id):
        reference_backward(loss, [trained[i] for i in of], scalers[loss_id])

    def zero_grad():
        for one in trained:
            one.zero_grad()

    modules = [one.model for one in trained]
    iterate(trained, modules, overflow, backward, zero_grad, lambda i: trained[i].step())
    masters = [[*one.masters.parameters()] for one in trained]
    return [s.loss_scale for s in scalers], masters, [[*m.parameters()] for m in modules]


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("level", DTYPES)
@pytest.mark.parametrize("overflow", POSITIONS, ids=lambda p: f"loss{p[0]}-model{p[1]}-{p[2]}")
def test_an_overflow_in_each_position(overflow, level, make):
    got, expected = run_amp(level, make, overflow), run_by_hand(level, make, overflow)
    assert got[0] == expected[0] and got[0][overflow[0]] < 2.0**16
    torch.testing.assert_close(got[1:], expected[1:], rtol=0, atol=0)


def script(name: str) -> list[float]:
    """The value added to the gradient of each of 10,000 steps; 0 is a clean step."""
    rng = random.Random(name)
    odds = {"clean": 0.0, "rare": 1 / 1500, "often": 1 / 500}[name]
    values = [float("inf"), float("nan"), float("-inf")]
    return [rng.choice(values) if rng.random() < odds else 0.0 for _ in range(10_000)]


LIMITS = {"min_loss_scale": 512.0, "max_loss_scale": 2.0**18}


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        pytest.param("clean", {}, marks=pytest.mark.soak),
        pytest.param("rare", {}, marks=pytest.mark.soak),
        ("often", LIMITS),
    ],
)
def test_the_loss_scale_over_ten_thousand_steps(name, limits):
    torch.manual_seed(0)
    param = nn.Linear(1, 1, bias=False)
    model, optimizer = amp.initialize(
        param, sgd(param, lr=2.0**-10), opt_level="O2", verbosity=0, **limits
    )
    scaler, reference = optimizer._torchamp.session.scalers[0], ReferenceScaler(**limits)
    weight = model.weight
    zero = torch.zeros_like(weight)
    master = next(amp.master_params(optimizer))
    for planted in script(name):
        before = master.item()
        with amp.scale_loss(weight.float().sum() * 2.0**-9, optimizer) as scaled_loss:
            scaled_loss.backward()
            weight.grad += planted + zero
        optimizer.step()
        optimizer.zero_grad()
        reference.update(planted != 0)
        assert scaler.state() == (reference.loss_scale, reference.unskipped)
        assert (master.item() == before) == (planted != 0)


@pytest.mark.parametrize("loss_scale", ["dynamic", 1024.0])
def test_losses_of_one_optimizer_sum_up_whatever_their_scales(loss_scale):
    """Each backward is divided by its own scale, so the sum equals float32's."""
    model, reference = linear_net(), linear_net()
    reference.load_state_dict(model.state_dict())
    model, optimizer = amp.initialize(
        model, sgd(model), opt_level="O0", loss_scale=loss_scale, num_losses=2, verbosity=0
    )
    optimizer._torchamp.session.scalers[1].set_loss_scale(8.0)
    for loss_id in range(2):
        with amp.scale_loss(loss_of([model], (0,), loss_id), optimizer, loss_id) as scaled_loss:
            scaled_loss.backward()
        loss_of([reference], (0,), loss_id).backward()
    for got, param in zip(amp.master_params(optimizer), reference.parameters()):
        torch.testing.assert_close(got.grad, param.grad, rtol=1e-6, atol=1e-8)

"""Options of the fused optimizers: torch's rules for tensors."""

import copy

import pytest
import torch
from nets import linear_net, loss_of, train_step
from torch import nn

from torchamp import amp, optimizers

KINDS = [getattr(optimizers, name) for name in optimizers.__all__ if name != "FusedOptimizer"]
#: Options that LibTorch's optimizers, and files of them, lack.
OURS_ALONE = {kind.__name__: set() for kind in KINDS} | {
    "FusedAdam": {"decoupled_weight_decay", "maximize", "bias_correction"},
    "FusedAdamW": {"decoupled_weight_decay", "maximize", "bias_correction"},
    "FusedSGD": {"maximize", "decay_after_momentum"},
}
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def make_params(device, dtype=torch.float32):
    return [nn.Parameter(torch.linspace(-1, 1, n, device=device).to(dtype)) for n in (3, 5)]


def train(optimizer, params, steps, first=0):
    for step in range(first, first + steps):
        for param in params:
            param.grad = torch.cos(torch.arange(len(param), device=param.device) + step).to(param)
        optimizer.step()


def refusal(function, *args, **options):
    with pytest.raises(ValueError) as raised:
        function(*args, **options)
    return str(raised.value)


@every
def test_a_tensor_lr_has_one_element(kind, device):
    """Also in a group that is added later; torch refuses it at construction."""
    params = make_params(device)
    optimizer = kind(params[:1], lr=0.1)
    for sizes in ([2], [0], [1, 2]):
        lr = torch.full(sizes, 0.1, device=device)
        expected = (
            f"{kind.__name__}: expected lr to be a number or a tensor of one element, got sizes "
            f"{sizes}"
        )
        assert refusal(kind, params, lr=lr) == expected
        added = {"params": params[1:], "lr": lr}
        assert refusal(optimizer.add_param_group, added) == expected
    assert len(optimizer.param_groups) == 1
    for sizes in ([], [1]):
        train(kind(params, lr=torch.full(sizes, 0.1, device=device)), params, 1)


@every
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_tensor_lr_on_the_cpu_is_in_its_range(kind, value):
    wrong = torch.tensor(value)
    expected = f"{kind.__name__}: expected lr to be at least 0.0, got {value}"
    assert refusal(kind, make_params("cpu"), lr=wrong) == expected
    kind(make_params("meta"), lr=torch.tensor(value, device="meta"))  # whose value nobody knows


@every
def test_other_options_are_no_tensors(kind):
    """They were taken for 0."""
    params, wrong = make_params("cpu"), torch.tensor(0.5)
    expected = f"{kind.__name__}: expected weight_decay to be a number, got "
    assert refusal(kind, params, lr=0.1, weight_decay=wrong) == expected + "a tensor"
    optimizer = kind(params, lr=0.1)
    optimizer.param_groups[0]["weight_decay"] = wrong
    assert refusal(train, optimizer, params, 1) == expected + "tensor(0.5000)"


@every
@pytest.mark.parametrize("wrong", ["0.1", None, [0.1], 10**400])
def test_a_learning_rate_is_a_number(kind, wrong):
    expected = f"{kind.__name__}: expected lr to be a number, got {wrong!r}"
    assert refusal(kind, make_params("cpu"), lr=wrong) == expected
    params = make_params("cpu")
    optimizer = kind(params, lr=0.1)
    optimizer.param_groups[0]["lr"] = wrong
    before = [param.detach().clone() for param in params]
    assert refusal(train, optimizer, params, 1) == expected
    assert all(torch.equal(param, value) for param, value in zip(params, before))


def test_a_beta_is_a_number_that_a_float_holds():
    expected = f"FusedAdam: expected betas[1] to be a number, got {10**400}"
    assert refusal(optimizers.FusedAdam, make_params("cpu"), betas=(0.9, 10**400)) == expected


@pytest.mark.parametrize("wrong", [0.9, "0.9", (0.9,), (0.9, "0.99"), None])
def test_betas_are_two_numbers(wrong):
    expected = f"FusedAdam: expected betas to be two numbers, got {wrong!r}"
    assert refusal(optimizers.FusedAdam, make_params("cpu"), betas=wrong) == expected
    params = make_params("cpu")
    optimizer = optimizers.FusedAdam(params)
    optimizer.param_groups[0]["betas"] = wrong
    assert refusal(train, optimizer, params, 1) == expected


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adams_have_no_amsgrad(name, level, tmp_path):
    """It is refused wherever it comes from, and nothing is changed."""

    def trained(kind, **options):
        torch.manual_seed(0)
        model = linear_net()
        optimizer = kind(model.parameters(), lr=0.1, **options)
        amp.initialize(model, optimizer, opt_level=level, loss_scale=1.0, verbosity=0)
        train_step(model, optimizer)
        return model, optimizer

    kind, of_torch = getattr(optimizers, f"Fused{name}"), getattr(torch.optim, name)
    model, optimizer = trained(kind)
    torchs = trained(of_torch, amsgrad=True)
    amp.save(*torchs, tmp_path / "file")
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    added = {"params": [nn.Parameter(torch.ones(2))], "amsgrad": True}
    for refuse in (
        lambda: kind(make_params("cpu"), amsgrad=True),
        lambda: optimizer.add_param_group(added),
        lambda: optimizer.load_state_dict(torchs[1].state_dict()),
        lambda: amp.load(model, optimizer, tmp_path / "file"),
    ):
        with pytest.raises(RuntimeError) as refused:
            refuse()
        assert str(refused.value) in (
            f"Fused{name}: expected amsgrad to be False, got True; torch.optim.Adam and AdamW have "
            "it",
            "amp.load: expected optimizers[0].param_groups[0].amsgrad of the checkpoint to be "
            "False, since torch.optim.Adam and AdamW alone have it, got True",
        )
        after = [model.state_dict(), optimizer.state_dict()]
        torch.testing.assert_close(after, before, rtol=0, atol=0)
    loss_of(model).backward()
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(RuntimeError, match=f"^Fused{name}: expected amsgrad to be False, got True"):
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), before[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "kind", [optimizers.FusedAdam, optimizers.FusedAdamW, optimizers.FusedLAMB]
)
def test_a_count_that_only_the_group_has_is_that_of_its_parameters(kind, device):
    """As in a state dict of apex's; a parameter's own count goes before."""
    params, again = make_params(device), make_params(device)
    optimizer, resumed = kind(params, lr=0.1), kind(again, lr=0.1)
    train(optimizer, params, 5)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["step"] = int(saved["state"][0].pop("step"))
    resumed.load_state_dict(saved)
    for param, value in zip(again, params):
        param.data.copy_(value)
    train(optimizer, params, 2, first=5)
    train(resumed, again, 2, first=5)
    assert all(map(torch.equal, again, params))
    assert [int(resumed.state[param]["step"]) for param in again] == [7, 7]


@every
@pytest.mark.parametrize("uses_amp", [False, True])
def test_an_option_that_a_program_has_deleted_is_an_error(kind, uses_amp):
    """As of torch's. Those that its files lack have their defaults."""
    model = linear_net()
    optimizer = kind(model.parameters(), lr=0.1)
    if uses_amp:
        amp.initialize(model, optimizer, opt_level="O5", verbosity=0)
    loss_of(model).backward()
    optimizer.step()
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])
    names = {spec.name for spec in kind.options.specs}
    for name in names - OURS_ALONE[kind.__name__]:
        value = optimizer.param_groups[0].pop(name)
        expected = f"{kind.__name__}: expected {name} to be in each group, got one without it"
        assert refusal(optimizer.step) == expected
        optimizer.param_groups[0][name] = value
    after = [model.state_dict(), optimizer.state_dict()["state"]]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    for name in OURS_ALONE[kind.__name__]:
        del optimizer.param_groups[0][name]
    optimizer.step()

"""Options of the fused optimizers: torch's rules for tensors, and where Adagrad's sums start."""

import copy

import pytest
import torch
from nets import linear_net, loss_of
from torch import nn

from torchamp import amp, optimizers

KINDS = [getattr(optimizers, name) for name in optimizers.__all__ if name != "FusedOptimizer"]
#: Options that LibTorch's optimizers, and files of them, lack.
OURS_ALONE = {kind.__name__: set() for kind in KINDS} | {
    "FusedAdam": {"decoupled_weight_decay", "maximize", "bias_correction"},
    "FusedAdamW": {"decoupled_weight_decay", "maximize", "bias_correction"},
    "FusedSGD": {"maximize", "decay_after_momentum"},
    "FusedLARS": {"maximize", "decay_after_momentum"},
    "FusedAdagrad": {"decoupled_weight_decay", "maximize"},
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
    wrong = {"weight_decay": torch.tensor(0.1)}
    expected = f"{kind.__name__}: expected weight_decay to be a number, got a tensor"
    assert refusal(kind, make_params("cpu"), lr=0.1, **wrong) == expected


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


@every
def test_tensors_written_to_groups_are_learning_rates_alone(kind):
    params = make_params("cpu")
    optimizer = kind(params, lr=0.1)
    optimizer.param_groups[0]["weight_decay"] = torch.tensor(0.5)
    expected = f"{kind.__name__}: expected weight_decay to be a number, got tensor(0.5000)"
    assert refusal(train, optimizer, params, 1) == expected


def adagrads(params, twins, **options):
    options = {"lr": 0.1, "initial_accumulator_value": 0.5, **options}
    return optimizers.FusedAdagrad(params, **options), torch.optim.Adagrad(twins, **options)


def test_adagrads_arguments_are_in_torchs_order(device):
    params, twins = make_params(device), make_params(device)
    arguments = (0.1, 0.2, 0.3, 0.5, 1e-3)
    ours = optimizers.FusedAdagrad(params, *arguments)
    torchs = torch.optim.Adagrad(twins, *arguments)
    train(ours, params, 3)
    train(torchs, twins, 3)
    torch.testing.assert_close(params, twins)


@pytest.mark.parametrize("options", [{}, {"lr_decay": 0.1, "weight_decay": 0.1}])
def test_sums_start_at_a_value(options, device):
    params, twins = make_params(device), make_params(device)
    ours, torchs = adagrads(params, twins, **options)
    for steps in (0, 3):
        train(ours, params, steps)
        train(torchs, twins, steps)
        torch.testing.assert_close(params, twins)
        for param, twin in zip(params, twins):
            torch.testing.assert_close(ours.state[param]["sum"], torchs.state[twin]["sum"])
            assert int(ours.state[param]["step"]) == steps


@pytest.mark.parametrize("steps", [0, 2])
def test_sums_that_started_there_resume(steps, device):
    params, again, twins = (make_params(device) for _ in range(3))
    optimizer, torchs = adagrads(params, twins)
    train(optimizer, params, steps)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = optimizers.FusedAdagrad(again, lr=0.1)
    resumed.load_state_dict(saved)
    torchs.load_state_dict(saved)
    for each in (*zip(again, params), *zip(twins, params)):
        each[0].data.copy_(each[1])
    train(optimizer, params, 2, first=steps)
    train(resumed, again, 2, first=steps)
    train(torchs, twins, 2, first=steps)
    assert all(map(torch.equal, again, params))
    torch.testing.assert_close(params, twins)


def test_sums_that_a_state_dict_lacks_start_there(device):
    params, twins = make_params(device), make_params(device)
    optimizer, expected = adagrads(params, twins)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    train(optimizer, params, 2)
    train(expected, twins, 2)
    torch.testing.assert_close(params, twins)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_of_sums(dtype, device):
    params = make_params(device, dtype)
    optimizer, _ = adagrads(params, make_params(device))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert {optimizer.state[param]["sum"].dtype for param in params} == {wide}
    optimizer = optimizers.FusedAdagrad(
        make_params(device), initial_accumulator_value=0.5, state_dtype=torch.bfloat16
    )
    assert {state["sum"].dtype for state in optimizer.state.values()} == {torch.bfloat16}


def test_a_group_that_is_added_starts_at_its_own_value(device):
    params = make_params(device)
    optimizer, _ = adagrads(params[:1], make_params(device)[:1])
    optimizer.add_param_group({"params": params[1:], "initial_accumulator_value": 2.0})
    assert [float(optimizer.state[param]["sum"][0]) for param in params] == [0.5, 2.0]


def test_a_value_below_zero_is_refused(device):
    expected = "FusedAdagrad: expected initial_accumulator_value to be at least 0.0, got -1.0"
    wrong = {"initial_accumulator_value": -1.0}
    assert refusal(optimizers.FusedAdagrad, make_params(device), **wrong) == expected


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_masters_take_their_sums_along(level, tmp_path):
    def trained(kind, steps, **options):
        torch.manual_seed(0)
        model = linear_net()
        optimizer = kind(model.parameters(), lr=0.1, **options)
        amp.initialize(model, optimizer, opt_level=level, loss_scale=1.0, verbosity=0)
        for _ in range(steps):
            step(model, optimizer)
        return model, optimizer

    def step(model, optimizer):
        optimizer.zero_grad()
        with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

    pair = trained(optimizers.FusedAdagrad, 3, initial_accumulator_value=0.5)
    torchs = trained(torch.optim.Adagrad, 3, initial_accumulator_value=0.5)
    torch.testing.assert_close(list(pair[0].parameters()), list(torchs[0].parameters()))
    torchs_sums = {len(state["sum"].shape) for state in torchs[1].state.values()}
    assert torchs_sums == {len(state["sum"].shape) for state in pair[1].state.values()}
    amp.save(*pair, tmp_path / "file")
    resumed = trained(optimizers.FusedAdagrad, 0)
    amp.load(*resumed, tmp_path / "file")
    for each in (pair, resumed):
        step(*each)
    assert all(map(torch.equal, pair[0].parameters(), resumed[0].parameters()))


def test_a_refused_group_leaves_no_sums():
    model = linear_net()
    halves = [list(layer.parameters()) for layer in (model[0], model[2])]
    pair = [adagrads(params, make_params("cpu"))[0] for params in halves]
    amp.initialize(model, pair, opt_level="O2", loss_scale=1.0, verbosity=0)
    other = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError) as refused:
        pair[0].add_param_group({"params": [other, model[2].weight]})
    assert str(refused.value) == (
        "add_param_group: expected a parameter that no other optimizer steps, since it has a "
        "float32 master, got one of sizes [3, 8] that another steps; make one optimizer with two "
        "groups, or train in phases: amp.release(model), then initialize with the other optimizer"
    )
    assert len(pair[0].state) == len(pair[0].state_dict()["state"]) == 2


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

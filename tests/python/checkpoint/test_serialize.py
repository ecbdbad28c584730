"""amp.save and amp.load in Python alone: exact at every level, and files that do not fit."""

import copy
import io
import os
import re

import pytest
import torch
from nets import Net, adam, changed, everything, file_by, initialized, sgd, train_step
from torch import nn

from torchamp import Amp, amp


def file_of(level: str, make=sgd, steps: int = 2, **options) -> io.BytesIO:
    """A checkpoint of a previous run."""
    model, optimizer = initialized(level, optimizer=make, **options)
    for step in range(steps):
        train_step(model, optimizer, step)
    return file_by(lambda file: amp.save(model, optimizer, file))


def test_several_models_optimizers_and_losses(tmp_path):
    def make() -> Amp:
        models = [Net(), Net()]
        optimizers = [sgd(models[0]), adam(models[1])]
        return Amp(models, optimizers, "O2", num_losses=2, verbosity=0)

    one, other = make(), make()
    one.loss_scalers[1].set_loss_scale(512.0)
    one.save(tmp_path / "run.pt")
    other.load(tmp_path / "run.pt")
    assert [scaler.loss_scale() for scaler in other.loss_scalers] == [65536.0, 512.0]
    for left, right in zip(one.models, other.models):
        torch.testing.assert_close(left.state_dict(), right.state_dict(), rtol=0, atol=0)


def test_a_model_without_an_optimizer(tmp_path):
    one = amp.initialize(Net(), opt_level="O2", verbosity=0)
    amp.save(one, None, tmp_path / "model.pt")
    other = amp.initialize(Net(), opt_level="O2", verbosity=0)
    amp.load(other, None, tmp_path / "model.pt")
    torch.testing.assert_close(other.state_dict(), one.state_dict(), rtol=0, atol=0)


def test_with_enabled_false(tmp_path):
    one, other = initialized("O2", enabled=False), initialized("O2", enabled=False)
    amp.save(*one, tmp_path / "run.pt")
    amp.load(*other, tmp_path / "run.pt")
    torch.testing.assert_close(other[0].state_dict(), one[0].state_dict(), rtol=0, atol=0)


def test_the_parts_load_into_torch_s_own_objects(tmp_path):
    checkpoint = torch.load(file_of("O2"), weights_only=True)
    model = Net()
    model.load_state_dict(checkpoint["models"][0])
    sgd(model).load_state_dict(checkpoint["optimizers"][0])
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}


class Runs:
    """Runs code when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("it_ran",)


def test_nothing_in_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"torchamp": 1, "opt_level": "O2", "models": Runs()}, "evil.pt")
    with pytest.raises(RuntimeError, match="cannot be read: it is damaged, or contains non-data"):
        amp.load(*initialized("O2"), "evil.pt")
    assert not os.path.exists("it_ran")


def wider() -> nn.Module:
    net = Net()
    net.first = nn.Linear(5, 8)
    return net


def refused_by(model, optimizer, file, message: str) -> None:
    """Asserts that loading fails and changes nothing."""
    train_step(model, optimizer)
    before = everything(model, optimizer)
    options = copy.deepcopy(optimizer.state_dict()["param_groups"])
    with pytest.raises(RuntimeError, match=re.escape(message)):
        amp.load(model, optimizer, file)
    assert changed(before, everything(model, optimizer)) == set()
    assert optimizer.state_dict()["param_groups"] == options


@pytest.mark.parametrize(
    "make_file, message",
    [
        (lambda: file_of("O5"), "amp.load: expected a checkpoint of opt_level O2, got one of O5; "),
        (lambda: file_of("O2", num_losses=3), "expected a checkpoint of 1 losses, got one of 3"),
        (
            lambda: file_of("O2", adam),
            "amp.load: expected optimizers[0] of the checkpoint to be of kind SGD, got Adam",
        ),
        (
            lambda: file_of("O2", model=nn.Linear(4, 3)),
            'missing key "last.bias", unexpected key "weight", unexpected key "bias"',
        ),
        (
            lambda: file_of("O2", model=wider(), steps=0),
            "amp.load: expected models[0] of the checkpoint to have the names, sizes and types of "
            'the model here, got "first.weight" with sizes [8, 5], expected [8, 4]',
        ),
        (
            lambda: file_of("O2", lambda model: sgd(model.first)),
            "optimizers[0].param_groups[0] of the checkpoint to have 6 params, got 2",
        ),
        (
            lambda: file_of(
                "O2",
                lambda m: torch.optim.SGD(
                    [{"params": m.first.parameters()}, {"params": m.last.parameters()}], lr=1e-3
                ),
            ),
            "optimizers[0] of the checkpoint to have 1 param_groups, got 2",
        ),
        (lambda: io.BytesIO(b"no zip"), "to be a file that amp.save wrote, got one that cannot be"),
        (lambda: io.BytesIO(file_of("O2").getvalue()[:-200]), "got one that cannot be read: "),
    ],
)
def test_files_that_do_not_fit(make_file, message):
    file = make_file()
    refused_by(*initialized("O2"), file, message)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda c: c.update(torchamp=2),
            "expected a checkpoint of format 1, got 2, written by another version of torchamp",
        ),
        (
            lambda c: c.pop("torchamp"),
            "expected the checkpoint to contain 'torchamp', but it is missing",
        ),
        (
            lambda c: c["loss_scalers"][0].pop("growth_tracker"),
            "expected the checkpoint to contain 'growth_tracker', but it is missing",
        ),
        (
            lambda c: c["loss_scalers"][0].update(loss_scale=0.0),
            "expected loss_scalers[0] of the checkpoint to have a loss_scale above 0 that is "
            "finite in float32, and a growth_tracker of 32 bits, got 0.0 and 2",
        ),
        (
            lambda c: c["optimizers"][0]["state"][1].update(momentum_buffer=torch.ones(3)),
            '"optimizers[0].param_groups[0].params[1].momentum_buffer" of the checkpoint to have '
            "sizes [8], got [3]",
        ),
    ],
)
def test_files_in_which_something_is_wrong(change, message):
    checkpoint = torch.load(file_of("O2"), weights_only=True)
    change(checkpoint)
    file = file_by(lambda file: torch.save(checkpoint, file))
    refused_by(*initialized("O2"), file, message)


def test_no_numbers_are_formatted(monkeypatch):
    """Which takes longer than all else, and which torch refuses of some tensors at O1."""
    file, pair = file_of("O1", adam), initialized("O1", optimizer=adam)
    checkpoint = torch.load(file, weights_only=True)
    file.seek(0)
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda *_, **__: pytest.fail("formatted"))
    amp.load(*pair, file)
    checkpoint["optimizers"][0]["state"] = [torch.ones(3)]
    refused_by(
        *pair,
        file_by(lambda file: torch.save(checkpoint, file)),
        "amp.load: expected optimizers[0].state of the checkpoint to be a dict, got [a "
        "torch.float32 tensor of sizes [3] on cpu]",
    )


def test_state_that_is_no_data_is_not_saved(tmp_path):
    model, optimizer = initialized("O2")
    optimizer.param_groups[0]["schedule"] = lambda step: 1.0
    message = re.escape("expected optimizers[0].param_groups[0].schedule to be a tensor, a number")
    with pytest.raises(TypeError, match="^amp.save: " + message):
        amp.save(model, optimizer, tmp_path / "run.pt")
    assert not (tmp_path / "run.pt").exists()


def test_files_of_plain_programs_are_named(tmp_path):
    torch.save(Net().state_dict(), tmp_path / "state_dict")
    torch.save(Net(), tmp_path / "model")
    torch.jit.save(torch.jit.script(Net()), tmp_path / "archive")
    for file, message in (
        ("state_dict", r"got a state dict; model.load_state_dict takes it"),
        (
            "model",
            r"it is damaged, or contains non-data objects, as of torch.save\(model, file\); "
            r"amp.save\(model, optimizer, file\) writes data alone$",
        ),
        ("archive", r"torch::save; model.load_state_dict\(torch.jit.load\(file\).state_dict\(\)\)"),
    ):
        with pytest.raises(RuntimeError, match=message):
            amp.load(*initialized("O2"), tmp_path / file)

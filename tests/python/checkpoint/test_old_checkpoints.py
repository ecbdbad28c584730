"""What torchamp of commit 885942b saved, in either language, loads bit for bit, and the run goes on
as it did then. tests/old_checkpoints/make.py wrote the files."""

import old_run
import pytest
import torch
from nets import changed, file_by

from torchamp import amp

pytestmark = [
    pytest.mark.parametrize("language", old_run.LANGUAGES),
    pytest.mark.parametrize("level", old_run.LEVELS),
    pytest.mark.parametrize("name", old_run.OPTIONS),
]


def loaded(language: str, level: str, name: str):
    """(model, optimizer, extra); the optimizer was made with another learning rate."""
    model, optimizer = old_run.started(level, name, lr=1.0)
    extra = amp.load(model, optimizer, old_run.file_of(language, level, name))
    return model, optimizer, extra


def flat(states: dict[int, dict]) -> dict[str, torch.Tensor]:
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, state in states.items()
        for name, value in state.items()
    }


def test_its_state(language, level, name):
    saved = torch.load(old_run.file_of(language, level, name), weights_only=True)
    model, optimizer, _ = loaded(language, level, name)
    assert changed(saved["models"][0], model.state_dict()) == set()
    states = optimizer.state_dict()["state"]
    assert changed(flat(saved["optimizers"][0]["state"]), flat(states)) == set()
    again = torch.load(file_by(lambda file: amp.save(model, optimizer, file)), weights_only=True)
    (scaler,) = saved["loss_scalers"]
    del scaler["hysteresis_tracker"]  # that commit's alone
    assert again["loss_scalers"] == [scaler]
    assert changed(saved["models"][0], again["models"][0]) == set()


def test_its_run_goes_on(language, level, name):
    model, optimizer, extra = loaded(language, level, name)
    old_run.train(model, optimizer, old_run.STEPS, old_run.STEPS + old_run.FURTHER_STEPS)
    values = old_run.values_of(model.state_dict())
    if name == "FusedAdagrad":  # torch's goes on, which squares the grads with another rounding
        torch.testing.assert_close(values, extra["after"])
    else:
        assert torch.equal(values, extra["after"])

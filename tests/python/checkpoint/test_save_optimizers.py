"""Every optimizer of torch.optim that amp.save writes, amp.load reads, and the run goes on as it
would have."""

import pytest
import torch
from nets import changed, everything, file_by, initialized, train_step

from torchamp import amp

#: Not those with a closure, or for sparse grads.
NAMES = sorted(
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
)

OPTIONS = {"SGD": {"momentum": 0.5}, "RMSprop": {"momentum": 0.5, "centered": True}}


WITHOUT_MASTERS = "O5, master_weights=False"


def make(name: str, level: str):
    def optimizer(model):
        return getattr(torch.optim, name)(model.parameters(), lr=0.01, **OPTIONS.get(name, {}))

    bias = name != "Muon"  # which steps matrices alone
    options = {"master_weights": False} if level == WITHOUT_MASTERS else {}
    return initialized(level[:2], torch.nn.Linear(4, 3, bias=bias), optimizer, **options)


def reloaded(pair, name: str, level: str):
    file = file_by(lambda file: amp.save(*pair, file))
    other = make(name, level)
    train_step(*other, 9)
    amp.load(*other, file)
    return other


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5", WITHOUT_MASTERS])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on(name, level):
    whole = make(name, level)
    for step in range(2):
        train_step(*whole, step)
    resumed = reloaded(whole, name, level)
    assert changed(everything(*whole), everything(*resumed)) == set()
    for step in range(2, 4):
        train_step(*whole, step)
        train_step(*resumed, step)
    assert changed(everything(*whole), everything(*resumed)) == set()


def test_sums_stay_in_float32():
    """Adagrad makes them before initialize casts the model."""
    whole = make("Adagrad", "O3")
    train_step(*whole)
    resumed = reloaded(whole, "Adagrad", "O3")
    assert {state["sum"].dtype for state in resumed[1].state.values()} == {torch.float32}
    assert changed(everything(*whole), everything(*resumed)) == set()


def test_lbfgs():
    def optimizer(model):
        return torch.optim.LBFGS(model.parameters(), lr=0.1)

    def trained(seed: int):
        model, lbfgs = initialized("O0", torch.nn.Linear(4, 3), optimizer)

        def closure():
            lbfgs.zero_grad()
            loss = model(torch.full((2, 4), float(seed))).square().sum()
            loss.backward()
            return loss

        lbfgs.step(closure)
        return model, lbfgs

    one, other = trained(1), trained(2)
    file = file_by(lambda file: amp.save(*one, file))
    amp.load(*other, file)
    torch.testing.assert_close(other[1].state_dict(), one[1].state_dict(), rtol=0, atol=0)


def test_sparse_adam():
    def trained(seed: int):
        embedding = torch.nn.Embedding(5, 3, sparse=True)
        model, adam = initialized(
            "O0", embedding, lambda model: torch.optim.SparseAdam(list(model.parameters()))
        )
        amp.scale_loss(model(torch.tensor([seed])).sum(), adam).backward()
        adam.step()
        return model, adam

    one, other = trained(1), trained(2)
    file = file_by(lambda file: amp.save(*one, file))
    amp.load(*other, file)
    assert changed(everything(*one), everything(*other)) == set()

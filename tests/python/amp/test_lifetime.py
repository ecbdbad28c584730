"""Models and optimizers are freed with their last reference, without the garbage collector."""

import os
import sys
import weakref

import pytest
import torch
from nets import LEVELS, Net, adam, backward, initialized, loss_of, train_step

from torchamp import Amp, amp

pytestmark = pytest.mark.usefixtures("no_collector")


def use(model, optimizer) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    train_step(model, optimizer)
    scheduler.step()
    model.load_state_dict(model.state_dict())
    backward(model, optimizer)


@pytest.mark.parametrize("level", LEVELS)
def test_gone_by_reference_count(level):
    model, optimizer = initialized(level, Net())
    use(model, optimizer)
    parts = [
        model,
        optimizer,
        optimizer._torchamp,
        optimizer._torchamp.session,
        *amp.master_params(optimizer),
        *model.parameters(),
    ]
    watched = [weakref.ref(part) for part in parts]
    del model, optimizer, parts
    assert [ref() for ref in watched if ref() is not None] == []
    assert not torch.is_autocast_enabled("cpu")


TRAINED = """
import sys
from nets import Net, initialized, train_step

trained = []
for level in sys.argv[1:]:
    trained.append(initialized(level, Net()))
    train_step(*trained[-1])
"""


@pytest.mark.parametrize(
    "levels", [("O2", "O1"), pytest.param(("O5", "O4"), marks=pytest.mark.soak)], ids="-".join
)
def test_a_process_ends_in_silence(new_python, levels):
    """Its models and optimizers live until then."""
    assert new_python("-c", TRAINED, *levels, PYTHONPATH=os.pathsep.join(sys.path)) == ""


def test_the_scaled_loss_goes_too():
    model, optimizer = initialized("O1", Net())
    with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
        scaled_loss.backward()
    watched = weakref.ref(scaled_loss)
    del scaled_loss
    assert watched() is None


def test_an_exception_keeps_nothing():
    model, optimizer = initialized("O1", Net())
    try:
        with amp.scale_loss(loss_of(model), optimizer):
            raise KeyError
    except KeyError:
        pass
    watched = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    assert [ref() for ref in watched] == [None, None]


def test_the_optimizer_alone_keeps_what_it_needs():
    model, optimizer = initialized("O2", Net())
    backward(model, optimizer)
    del model
    optimizer.step()
    assert all(p.isfinite().all() for p in amp.master_params(optimizer))


def test_an_object_of_our_own_goes_with_its_parts():
    model = Net()
    owner = Amp(model, adam(model), opt_level="O1", verbosity=0)
    watched = weakref.ref(owner.optimizers[0])
    del owner, model
    assert watched() is None and not torch.is_autocast_enabled("cpu")

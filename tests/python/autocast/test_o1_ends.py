"""O1 and O4 end with their run: at the next initialize that would be cast too."""

import re
import warnings

import pytest
import torch
from nets import Net, batch, initialized, linear_net, loss_of, train_step

from torchamp import Amp, amp

DTYPES = {"O1": torch.float16, "O4": torch.bfloat16}
OTHERS = ["O0", "O2", "O3", "O5"]


pytestmark = pytest.mark.usefixtures("no_collector")


def product_dtype() -> torch.dtype:
    """The dtype of a product outside of forwards."""
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def train_and_leave(level: str) -> None:
    """A run whose model only a reference cycle holds."""
    model, optimizer = initialized(level, Net())
    model.__dict__["parts"] = [model, optimizer]
    train_step(model, optimizer)


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("then", OTHERS)
@pytest.mark.parametrize("first", DTYPES)
def test_a_run_that_is_gone_casts_nothing_more(first, then, no_warnings):
    train_and_leave(first)
    assert product_dtype() == DTYPES[first]
    model, optimizer = initialized(then)
    assert product_dtype() == torch.float32
    train_step(model, optimizer)


@pytest.mark.parametrize("first, then", [("O1", "O4"), ("O4", "O1")])
def test_nor_does_it_refuse_another_dtype(first, then, no_warnings):
    train_and_leave(first)
    model, optimizer = initialized(then)
    train_step(model, optimizer)
    assert product_dtype() == DTYPES[then]


# A run that something holds.


def conflict(wanted: torch.dtype, found: torch.dtype) -> str:
    return (
        f"initialize: expected no casts but to {wanted} in this thread, got a model of an earlier "
        f"initialize that casts to {found}; end them by amp.release(model), also of a model that "
        "only a notebook's Out holds, or use another thread"
    )


@pytest.mark.parametrize("end", [amp.release, lambda model: model._torchamp.session.casts.close()])
@pytest.mark.parametrize("first, then", [("O1", "O4"), ("O4", "O1")])
def test_another_dtype_is_refused(first, then, end):
    model, _ = initialized(first)
    other = Net()
    message = conflict(DTYPES[then], DTYPES[first])
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        initialized(then, other)
    assert type(other) is Net and product_dtype() == DTYPES[first]
    end(model)
    keeper = initialized(then, other)
    assert product_dtype() == DTYPES[then]
    del keeper


def doubt(dtype: torch.dtype) -> str:
    return (
        f"scale_loss: expected no casts in this thread, got a model of an earlier initialize that "
        f"casts to {dtype} outside of forwards, in loss functions too; end them by "
        "amp.release(model) of that model, or suspend them by amp.disable_casts()"
    )


@pytest.mark.parametrize("then", OTHERS)
@pytest.mark.parametrize("first", DTYPES)
def test_a_warning_says_that_other_code_is_cast(first, then):
    kept, _ = initialized(first)
    model, optimizer = initialized(then)
    with pytest.warns(UserWarning, match=f"^{re.escape(doubt(DTYPES[first]))}$") as seen:
        for _ in range(3):
            loss = loss_of(model)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
    assert len(seen) == 1 and seen[0].filename == __file__
    assert product_dtype() == DTYPES[first]
    amp.release(kept)
    assert product_dtype() == torch.float32


def test_its_other_remedy(no_warnings):
    keeper = initialized("O1")
    with amp.disable_casts():
        model, optimizer = initialized("O2")
        train_step(model, optimizer)
        assert product_dtype() == torch.float32
    del keeper


# No reason for a warning.


@pytest.mark.parametrize("then", OTHERS)
@pytest.mark.parametrize("leave", [initialized, train_and_leave])
def test_names_that_are_bound_anew(leave, then, no_warnings):
    """The earlier run exists until initialize has returned."""
    pair = leave("O1")
    pair = initialized(then)
    train_step(*pair)
    assert product_dtype() == torch.float32


@pytest.mark.parametrize("level", DTYPES)
def test_several_at_one_level(level, no_warnings):
    generator, discriminator = initialized(level), initialized(level)
    with Amp(linear_net(), opt_level=level, verbosity=0):
        train_step(*generator)
        train_step(*discriminator)
    del generator
    assert product_dtype() == DTYPES[level]


@pytest.mark.parametrize("then", OTHERS)
@pytest.mark.parametrize("first", DTYPES)
def test_a_model_that_is_initialized_again(first, then, no_warnings):
    model, earlier = initialized(first)
    train_step(model, earlier)
    model, optimizer = initialized(then, model)
    assert product_dtype() == torch.float32, "the earlier optimizer kept the casts"
    train_step(model, optimizer)
    assert model(batch()[0]).dtype == torch.float32


def test_one_of_two_that_is_initialized_again():
    models = [linear_net(), linear_net()]
    amp.initialize(models, opt_level="O1", verbosity=0)
    model, optimizer = initialized("O0", models[0])
    assert models[1](batch()[0]).dtype == torch.float16
    with pytest.warns(UserWarning, match="expected no casts in this thread"):
        train_step(model, optimizer)

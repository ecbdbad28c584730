"""amp.float32_params: float32 weights outside of steps, and training goes on as without it."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, Net, backward, batch, initialized, sgd, train_step
from torch import nn

from torchamp import amp

#: Levels that cast the model.
CAST = ["O2", "O3", "O5"]


class WithBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("third", torch.full((3,), 1 / 3))


def pair(level: str) -> tuple:
    """A model and its optimizer at `level`, and the same model in float32."""
    torch.manual_seed(0)
    model = WithBuffer()
    plain = copy.deepcopy(model)
    scale = {"loss_scale": 64.0} if level in ("O1", "O2") else {}
    model, optimizer = initialized(level, model, sgd, **scale)
    plain.third.copy_(model.third)
    return model, optimizer, plain


def values(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs)


@pytest.mark.parametrize("level", LEVELS)
def test_the_model_is_the_float32_one(level):
    model, _, plain = pair(level)
    if level == "O3":  # has no masters
        plain.load_state_dict(model.state_dict())
    weight, view = model.first.weight, model.first.weight.view(-1)
    before = [(id(tensor), tensor.dtype) for tensor in (*model.parameters(), *model.buffers())]
    for each in (model, plain):
        each.eval()
    x, _ = batch()
    with amp.float32_params(model):
        assert_equal(list(model.parameters()), list(plain.parameters()))
        assert model.third.dtype == torch.float32 and model.first.weight is weight
        assert model.state_dict()["first.weight"].data_ptr() == weight.data_ptr()
        with torch.no_grad(), amp.disable_casts():
            assert torch.equal(model(x), plain(x))
    tensors = (*model.parameters(), *model.buffers())
    assert [(id(tensor), tensor.dtype) for tensor in tensors] == before
    assert view.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_written_reaches_the_masters(level):
    model, optimizer, plain = pair(level)
    writes = [
        lambda each: each.first.weight.data.add_(2.0**-20),
        lambda each: each.state_dict()["first.bias"].fill_(0.1),
        lambda each: setattr(each.last.bias, "data", torch.full((3,), 0.3)),
        lambda each: each.third.mul_(1.01),
        lambda each: each.last.load_state_dict({"weight": torch.full((3, 8), 0.7)}, strict=False),
    ]
    if level == "O3":
        plain.load_state_dict(model.state_dict())
    for write in writes:
        write(plain)
        with amp.float32_params(model):
            write(model)
    rounded = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}.get(level)
    expected = dict(plain.state_dict())
    for name in expected if level == "O3" else ["third"]:
        if rounded is not None and expected[name].is_floating_point() and "norm" not in name:
            expected[name] = expected[name].to(rounded).float()
    assert_equal(values(model), list(expected.values()))
    for param, wanted in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(param, wanted.to(param.dtype), rtol=0, atol=0)
    train_step(model, optimizer)


@pytest.mark.parametrize("level", CAST)
def test_an_exception_keeps_what_was_written(level):
    model, _, _ = pair(level)
    dtype = model.first.weight.dtype
    with pytest.raises(KeyError), amp.float32_params(model):
        model.first.bias.data.fill_(0.5)
        raise KeyError
    assert model.first.weight.dtype == dtype
    assert (model.state_dict()["first.bias"] == 0.5).all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_within_it_is_the_step(level):
    model, optimizer, _ = pair(level)
    other, others, _ = pair(level)
    for seed in range(3):
        backward(model, optimizer, seed)
        backward(other, others, seed)
        with amp.float32_params(model):
            with amp.float32_params(model):
                pass  # nothing
            optimizer.step()
            inside = values(model)
        others.step()
        optimizer.zero_grad()
        others.zero_grad()
        assert_equal(values(model), values(other))
        assert_equal(inside, values(model))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_it_finds_masters_of_what_the_groups_hold_now(level):
    model, optimizer = initialized(
        level, Net(), lambda m: torch.optim.SGD([m.first.weight], lr=0.1), loss_scale=64.0
    )
    optimizer.param_groups[0]["params"].append(model.first.bias)
    with torch.no_grad(), amp.float32_params(model):
        model.first.bias.fill_(1 + 2.0**-12)
    assert (list(amp.master_params(optimizer))[1] == 1 + 2.0**-12).all()


@pytest.mark.parametrize("level", LEVELS)
def test_it_leaves_grads_and_backwards_alone(level):
    """Open ones, those that a later backward unscales, and those that a step uses."""
    model, optimizer, _ = pair(level)
    other, others, _ = pair(level)
    delays = {"delay_unscale": True}
    backward(model, optimizer, 0, **delays)
    backward(other, others, 0, **delays)
    before = [param.grad for param in model.parameters()]
    with amp.float32_params(model):
        assert all(param.grad is grad for param, grad in zip(model.parameters(), before))
    loss = model(batch(1)[0]).float().square().mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        with amp.float32_params(model):
            pass
        scaled_loss.backward()
        with amp.float32_params(model):
            pass
    loss = other(batch(1)[0]).float().square().mean()
    amp.scale_loss(loss, others).backward()
    with amp.float32_params(model):
        model.last.bias.grad.mul_(0.5)
    other.last.bias.grad.mul_(0.5)
    for each in (optimizer, others):
        each.step()
    assert_equal(values(model), values(other))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_forward_within_it_and_backward_after(level):
    model, optimizer, plain = pair(level)
    x, _ = batch()
    with amp.float32_params(model):
        loss = model(x).square().mean()
        assert loss.dtype == torch.float32
    loss.backward()
    plain(x).square().mean().backward()
    for param, expected in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(param.grad.float(), expected.grad, rtol=1e-2, atol=1e-3)
    optimizer.step()


@pytest.mark.parametrize("level", CAST)
def test_what_it_holds_is_saved_and_copied(level):
    model, optimizer, _ = pair(level)
    train_step(model, optimizer)
    files, copies = [io.BytesIO(), io.BytesIO()], []
    with amp.float32_params(model):
        amp.save(model, optimizer, files[0])
        copies.append(copy.deepcopy(model))
    amp.save(model, optimizer, files[1])
    copies.append(copy.deepcopy(model))
    assert files[0].getvalue() == files[1].getvalue()
    assert_equal(values(copies[0]), values(copies[1]))
    assert_equal(list(copies[0].parameters()), list(copies[1].parameters()))


@pytest.mark.parametrize("level", CAST)
def test_another_thread_finds_float32_too(level):
    model, _, _ = pair(level)
    model.eval()
    seen = []
    with amp.float32_params(model):
        thread = threading.Thread(target=lambda: seen.append(model(batch()[0])))
        thread.start()
        thread.join()
        assert torch.equal(seen[0], model(batch()[0])) and seen[0].dtype == torch.float32


def test_an_average_moves_by_less_than_16_bits_hold():
    model, optimizer, _ = pair("O5")
    with amp.float32_params(model):
        average = [param.detach().clone() for param in model.parameters()]
        start = [each.clone() for each in average]
    expected = [each.clone() for each in average]
    for seed in range(3):
        train_step(model, optimizer, seed)
        torch._foreach_lerp_(expected, [*amp.master_params(optimizer)], 0.001)
        with torch.no_grad(), amp.float32_params(model):
            torch._foreach_lerp_(average, list(model.parameters()), 0.001)
    assert_equal(average, expected)
    assert not any(map(torch.equal, average, start))


def test_release_within_it_is_refused():
    model, _, _ = pair("O2")
    with amp.float32_params(model):
        with pytest.raises(RuntimeError) as raised:
            amp.release(model)
        assert model.first.weight.dtype == torch.float32
    assert str(raised.value) == (
        "release: expected no float32_params to be open, but one is; release after it"
    )
    amp.release(model)
    with amp.float32_params(model):
        assert model.first.weight.dtype == torch.float32


def test_models_that_it_does_not_know_are_refused():
    model, _, _ = pair("O2")
    other, _, _ = pair("O2")
    refused = {
        "float32_params: expected models[1] to come from the same initialize as those before it, "
        "got one from another": [model, other],
        "float32_params: expected models[0] to be a model that initialize returned, or a plain "
        "one, got a Sequential": nn.Sequential(model),
    }
    for message, models in refused.items():
        with pytest.raises(RuntimeError) as raised:
            amp.float32_params(models)
        assert str(raised.value) == message
    with pytest.raises(TypeError, match="^float32_params: expected models"):
        amp.float32_params(3)


@pytest.mark.parametrize("level", LEVELS)
def test_float32_grads_are_assigned_within_it(level):
    """As worker grads and gradient surgery are."""
    model, optimizer = initialized(level, Net(), lambda m: torch.optim.SGD(m.parameters(), 0.5))
    for _ in range(2):
        before = model.state_dict()["last.bias"].clone()
        with amp.float32_params(model):
            for param in model.parameters():
                param.grad = torch.full(param.shape, 0.25)
        optimizer.step()
        optimizer.zero_grad()
        moved = before - model.state_dict()["last.bias"]
        assert torch.allclose(moved, torch.tensor(0.125), atol=1e-3)
        train_step(model, optimizer)

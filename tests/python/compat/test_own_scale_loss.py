"""Programs with a scale_loss of their own, of the parts of apex's."""

import contextlib
import gc
import types

import pytest
import torch
from apex import amp
from apex.amp._amp_state import _amp_state
from apex.optimizers import FusedAdam, FusedSGD
from compat.optimizers import initialized
from nets import adam, loss_of, overflow_at, sgd

MAKERS = {
    "sgd": sgd,
    "adam": adam,
    "FusedAdam": lambda model: FusedAdam(model.parameters(), lr=0.1),
    "FusedSGD": lambda model: FusedSGD(model.parameters(), lr=0.125, momentum=0.5),
}


@contextlib.contextmanager
def own_scale_loss(loss, optimizer):
    """Begins, scales, ends, updates the scale, and has the next step skipped after an overflow."""
    stash, scaler = optimizer._amp_stash, _amp_state.loss_scalers[0]
    if not stash.params_have_scaled_gradients:
        optimizer._prepare_amp_backward()
    yield loss.float() * scaler.loss_scale()
    scaler.clear_overflow_state()
    optimizer._post_amp_backward(scaler)
    stash.params_have_scaled_gradients = False
    if scaler.update_scale() and not stash.already_patched:
        skip_next_step(optimizer)


def skip_next_step(optimizer):
    step = optimizer.step

    def skip(self, closure=None):
        for param in amp.master_params(self):
            param.grad = None
        self.step = step
        self._amp_stash.already_patched = False

    optimizer.step = types.MethodType(skip, optimizer)
    optimizer._amp_stash.already_patched = True


def train(make, level, scale_loss):
    """Twice two micro-batches a step, with overflows in the second step and in the fourth."""
    torch.manual_seed(0)
    model, optimizer = initialized(level, make, loss_scale="dynamic")
    for i in range(6):
        optimizer.zero_grad()
        for k in range(2):
            value = float("inf") if (i, k) in ((1, 0), (3, 0), (3, 1)) else 0.0
            with overflow_at(model[0].weight, value):
                with scale_loss(loss_of(model), optimizer) as scaled_loss:
                    scaled_loss.backward()
        optimizer.step()
    return [*model.state_dict().values(), torch.tensor(_amp_state.loss_scalers[0].loss_scale())]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O5"])
@pytest.mark.parametrize("make", MAKERS)
def test_it_trains_as_amps(make, level):
    own = train(MAKERS[make], level, own_scale_loss)
    wanted = train(MAKERS[make], level, amp.scale_loss)
    gc.collect()  # the optimizer's own step is an attribute of it
    assert all(each.isfinite().all() for each in own)
    if level == "O3":  # where the scale falls once more: the sum of float16 grads is checked too
        own, wanted = own[:-1], wanted[:-1]
    assert all(map(torch.equal, own, wanted))


def test_grads_are_true_between_the_end_and_the_step():
    model, optimizer = initialized(loss_scale=1024.0)
    with own_scale_loss(loss_of(model), optimizer) as scaled_loss:
        scaled_loss.backward()
    got = [param.grad.clone() for param in amp.master_params(optimizer)]
    optimizer.zero_grad()
    with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
        scaled_loss.backward()
    wanted = [param.grad for param in amp.master_params(optimizer)]
    assert all(map(torch.equal, got, wanted))


def test_a_backward_that_failed_is_begun_anew():
    model, optimizer = initialized()
    with contextlib.suppress(ValueError), own_scale_loss(loss_of(model), optimizer):
        raise ValueError
    optimizer._prepare_amp_backward()
    assert optimizer._amp_stash.params_have_scaled_gradients
    optimizer._post_amp_backward(_amp_state.loss_scalers[0])
    assert not optimizer._amp_stash.params_have_scaled_gradients


def test_an_end_without_a_beginning_is_an_error():
    model, optimizer = initialized()
    with pytest.raises(
        RuntimeError,
        match=r"^_post_amp_backward: expected _prepare_amp_backward\(\) before the backward, "
        "got none$",
    ):
        optimizer._post_amp_backward(_amp_state.loss_scalers[0])
    del model


def test_the_scaler_of_another_loss_is_an_error():
    model, optimizer = initialized(num_losses=2)
    optimizer._prepare_amp_backward()
    with pytest.raises(
        RuntimeError,
        match="^_post_amp_backward: expected loss_scaler to be the first of those that initialize "
        r"made, loss_scalers\[0\], got another; use amp.scale_loss, which takes a loss_id$",
    ):
        optimizer._post_amp_backward(_amp_state.loss_scalers[1])
    with amp.scale_loss(loss_of(model), optimizer, loss_id=1) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

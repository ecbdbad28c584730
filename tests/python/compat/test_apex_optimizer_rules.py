"""apex.optimizers with schedulers, scalers, hooks and wrong arguments."""

import pytest
import torch
from apex.optimizers import FusedAdam, FusedLAMB, FusedNovoGrad, FusedSGD
from compat.optimizers import ALL, every, make_params, set_grads, train
from torch import nn

import torchamp
from torchamp import amp


@every
def test_amp_takes_them_at_every_level(kind, device):
    for level in ("O0", "O1", "O2", "O3"):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(device)
        optimizer = kind(model.parameters(), **{**ALL[kind], "lr": 0.1})
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        assert isinstance(optimizer, kind) and type(optimizer).__name__ == kind.__name__
        before = model.weight.detach().clone()
        loss = model(torch.randn(8, 4, device=device)).float().square().mean()
        optimizer.zero_grad()
        amp.scale_loss(loss, optimizer).backward()
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        assert not torch.equal(before, model.weight)


@every
def test_zero_grad_follows_its_arguments(kind, device):
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    for arguments, is_none in [((), kind is not FusedSGD), ((True,), True), ((False,), False)]:
        set_grads(params, 0)
        optimizer.zero_grad(*arguments)
        assert all((param.grad is None) == is_none for param in params)
    set_grads(params, 0)
    optimizer.zero_grad(set_to_none=True)
    assert params[0].grad is None
    optimizer.set_grad_none = False
    set_grads(params, 0)
    optimizer.zero_grad()
    assert torch.count_nonzero(params[0].grad) == 0


@every
def test_a_closure_is_called_once_with_grad_mode_as_it_is(kind, device):
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = sum(param.square().sum() for param in params)
        loss.backward()
        calls.append(loss)
        return loss

    assert optimizer.step(closure) is calls[0] and len(calls) == 1
    assert all(param.grad is not None for param in params)


@every
def test_step_hooks_run_once(kind, device):
    getattr(torchamp.optimizers, kind.__name__)(make_params(device), lr=0.1)
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(optimizer, params, 1)
    assert seen == ["before", "after"]


@every
def test_sparse_grads_are_refused(kind, device):
    embedding = nn.Embedding(5, 3, sparse=True).to(device)
    optimizer = kind(embedding.parameters(), **ALL[kind])
    embedding(torch.tensor([1], device=device)).sum().backward()
    with pytest.raises(TypeError, match="dense"):
        optimizer.step()


def test_wrong_arguments_are_refused_as_in_apex(device):
    params = make_params(device)
    for kind in (FusedAdam, FusedLAMB, FusedNovoGrad):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: expected amsgrad to be False"):
            kind(params, amsgrad=True)
    with pytest.raises(RuntimeError, match="expected norm_type to be 2.*got 0"):
        FusedNovoGrad(params, norm_type=0)
    for wrong in ({"lr": -1.0}, {"momentum": -1.0}, {"weight_decay": -1.0}, {"nesterov": True}):
        with pytest.raises(ValueError, match="FusedSGD: expected"):
            FusedSGD(params, **{"lr": 0.1, **wrong})


@pytest.mark.parametrize("capturable", [False, True])
def test_masters_are_amps_alone(capturable, device):
    with pytest.raises(RuntimeError) as raised:
        FusedAdam(make_params(device), capturable=capturable, master_weights=True)
    assert str(raised.value) == (
        "FusedAdam: expected master_weights to be False, got True; use amp.initialize at O2 or O5, "
        "whose optimizers have float32 masters"
    )


def test_sgd_needs_an_lr_somewhere(device):
    params = make_params(device)
    with pytest.raises(ValueError, match="FusedSGD: expected lr"):
        FusedSGD(params)
    with pytest.raises(ValueError, match="FusedSGD: expected lr"):
        FusedSGD([{"params": params[:1], "lr": 0.1}, {"params": params[1:]}])
    optimizer = FusedSGD([{"params": params[:1], "lr": 0.1}])
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group({"params": params[1:]})

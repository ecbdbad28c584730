"""torchamp.GradScaler and grads of every kind: dtypes, sparse, on several devices, none."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from tensors import CountReads
from test_grad_scaler import backward, iterate, make_param, make_scaler, sgd
from torch import nn

from torchamp import optimizers
from torchamp.amp import GradScaler

LOW = [torch.float16, torch.bfloat16]


def test_grads_of_mixed_dtypes(device):
    dtypes = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
    params = [make_param(dtype=dtype, device=device) for dtype in dtypes]
    scaler, optimizer = make_scaler(device), sgd(*params, make_param(device=device))
    backward(scaler, *params)
    scaler.unscale_(optimizer)
    assert [param.grad.tolist() for param in params] == [[1.0, 1.0]] * 4
    assert [param.grad.dtype for param in params] == dtypes
    scaler.step(optimizer)
    assert [param.tolist() for param in params] == [[0.0, 1.0]] * 4


FUSED = [getattr(optimizers, name) for name in optimizers.__all__ if name != "FusedOptimizer"]


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("scaler_type", [torch.amp.GradScaler, GradScaler])
def test_fused_steps_leave_unscaled_grads(kind, scaler_type, device):
    """As torch's own fused optimizers. A step that is skipped leaves them scaled."""
    param, other = make_param(device=device), make_param(device=device)
    optimizer = kind([param, other, make_param(device=device)], lr=1.0)
    scaler = scaler_type(device.type, init_scale=4.0)
    backward(scaler, param, other, factor=3.0)
    scaler.step(optimizer)
    assert param.grad.tolist() == other.grad.tolist() == [3.0, 3.0]
    scaler.update()
    optimizer.zero_grad()
    backward(scaler, param, other, factor=3.0)
    other.grad.fill_(math.inf)
    scaler.step(optimizer)
    assert param.grad.tolist() == [12.0, 12.0]


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_sparse_grads(dtype):
    param = make_param([[1.0, 2.0]] * 3, dtype)
    scaler, optimizer = make_scaler(), sgd(param)
    scaler.scale(torch.ones(()))

    def give_grad(values: list) -> None:
        indices = torch.tensor([[0, 0, 2]])
        values = torch.tensor(values, dtype=dtype).unsqueeze(1).expand(3, 2)
        param.grad = torch.sparse_coo_tensor(indices, values.clone(), (3, 2), check_invariants=True)

    give_grad([4.0, 8.0, 12.0])
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [[-2.0, -1.0], [1.0, 2.0], [-2.0, -1.0]]
    give_grad([4.0, math.inf, 12.0])
    scaler.step(optimizer)
    assert param.tolist() == [[-2.0, -1.0], [1.0, 2.0], [-2.0, -1.0]]
    assert scaler.overflowed_params(optimizer) == [param]


def test_sums_of_sparse_float16_grads_that_overflow():
    param = make_param([1.0, 2.0], torch.float16)
    scaler, optimizer = make_scaler(), sgd(param)
    scaler.scale(torch.ones(()))
    large = torch.full((2,), 6e4, dtype=torch.float16)
    param.grad = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), large, (2,), check_invariants=True)
    scaler.step(optimizer)
    assert param.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unscaling_is_no_part_of_a_graph(dtype):
    scaler, param = make_scaler(), make_param(dtype=dtype)
    optimizer = sgd(param)
    (param.grad,) = torch.autograd.grad(scaler.scale((param**2).sum()), param, create_graph=True)
    made_by = param.grad.grad_fn
    scaler.unscale_(optimizer)
    assert param.grad.grad_fn is made_by and param.grad.tolist() == [2.0, 4.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.autograd.grad(param.grad.sum(), param)


def test_grads_may_vanish_between_unscale_and_step():
    scaler, param = make_scaler(), make_param()
    optimizer = sgd(param)
    backward(scaler, param)
    scaler.unscale_(optimizer)
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [1.0, 2.0]


def test_it_reports_where_the_overflow_was():
    scaler = make_scaler()
    params = [make_param() for _ in range(4)]
    optimizer = torch.optim.SGD([{"params": params[:2]}, {"params": params[2:]}], lr=1.0)
    other = sgd(make_param())
    assert scaler.overflowed_params(optimizer) == []
    backward(scaler, params[0], params[1], params[3])
    params[1].grad[0], params[3].grad[1] = math.nan, math.inf
    for call in (lambda: scaler.step(optimizer), scaler.update):
        call()
        found = scaler.overflowed_params(optimizer)
        assert [id(param) for param in found] == [id(params[1]), id(params[3])]
    assert scaler.overflowed_params(other) == []
    iterate(scaler, optimizer)
    assert scaler.overflowed_params(optimizer) == []


FUSED = {
    "torch_adam": lambda p: torch.optim.Adam(p, fused=True),
    "torch_adamw": lambda p: torch.optim.AdamW(p, fused=True),
    "torch_sgd": lambda p: torch.optim.SGD(p, 0.5, 0.9, nesterov=True, fused=True),
    "torch_adagrad": lambda p: torch.optim.Adagrad(p, fused=p[0].is_cpu),  # CUDA has none
    "adamw": lambda p: optimizers.FusedAdamW(p),
    "sgd": lambda p: optimizers.FusedSGD(p, 0.5, 0.9),
    "lamb": lambda p: optimizers.FusedLAMB(p),
}
FOREIGN = {
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "dampening": lambda p: torch.optim.SGD(p, 0.5, 0.9, dampening=0.5, fused=True),
    "not_all_fused": lambda p: torch.optim.Adam([{"params": p, "fused": False}], fused=True),
}


def values_of(optimizer: torch.optim.Optimizer) -> list:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    states = [s for state in optimizer.state.values() for s in state.values()]
    return [t.tolist() for t in params + [s for s in states if isinstance(s, torch.Tensor)]]


@pytest.mark.parametrize("name", [*FUSED, *FOREIGN])
@pytest.mark.parametrize("unscales", [False, True])
def test_an_overflow_leaves_nothing_behind(name, unscales, device):
    """Also in the first step, which creates states."""
    make = {**FUSED, **FOREIGN}[name]
    scaler, control = make_scaler(device), make([make_param(device=device)])
    optimizer = make([make_param(device=device)])
    (param,), (controlled,) = optimizer.param_groups[0]["params"], control.param_groups[0]["params"]
    for overflow in (True, False, True, False):
        optimizer.zero_grad()
        backward(scaler, param, factor=0.5)
        if overflow:
            param.grad[0] = math.inf
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if not overflow:
            controlled.grad = torch.full_like(controlled, 0.5)
            control.step()
            assert values_of(optimizer) == values_of(control)
        assert param.tolist() == controlled.tolist()
    assert not hasattr(optimizer, "found_inf") and not hasattr(optimizer, "grad_scale")
    assert scaler.get_scale() == 1.0


@pytest.mark.parametrize("name", [*FUSED, *FOREIGN])
@pytest.mark.parametrize("unscales", [False, True])
def test_how_often_the_host_waits(name, unscales):
    make = {**FUSED, **FOREIGN}[name]
    scaler, param, controlled = make_scaler(), make_param(), make_param()
    optimizer, control = make([param]), make([controlled])
    backward(scaler, param, controlled)
    with CountReads() as own:
        control.step()
    with CountReads() as count:
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert count.reads - own.reads == (0 if name in FUSED else 1)


class Custom(torch.optim.Optimizer):
    """An optimizer that declares that it handles scales itself."""

    _step_supports_amp_scaling = True

    def __init__(self, params) -> None:
        super().__init__(params, {})
        self.seen: list = []

    def step(self, closure=None):
        self.seen.append((self.found_inf.item(), self.grad_scale and self.grad_scale.item()))


class CustomOfOld(Custom):
    """Custom with torch's older protocol."""

    def step(self, closure=None, *, grad_scaler=None):
        assert isinstance(grad_scaler, torch.amp.GradScaler) and not hasattr(self, "found_inf")
        grad_scaler._check_inf_per_device(self)
        self.seen.append(grad_scaler)


def test_optimizers_that_handle_scales_themselves():
    scaler, param = make_scaler(), make_param()
    optimizer, older = Custom([param]), CustomOfOld([make_param()])
    for unscales, expected in ((False, (0.0, 4.0)), (True, (0.0, None))):
        backward(scaler, param)
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.seen.pop() == expected
    backward(scaler, param, *older.param_groups[0]["params"])
    optimizer.grad_scale = torch.tensor(2.0)
    scaler.step(optimizer)
    assert optimizer.seen == [(0.0, 8.0)]
    with pytest.warns(FutureWarning):
        scaler.step(older)
    assert older.seen == [scaler]
    scaler.update()


@pytest.mark.parametrize("scaler_type", [torch.amp.GradScaler, GradScaler])
def test_fused_steps_without_grads_do_nothing(scaler_type):
    scaler, param = scaler_type("cpu"), make_param()
    scaler.scale(torch.ones(()))
    scaler.step(optimizers.FusedAdam([param]))
    assert param.tolist() == [1.0, 2.0]


@pytest.mark.card
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs two kinds of devices")
def test_params_on_several_devices():
    params = [make_param(), make_param(device="cuda")]
    scaler, optimizer = make_scaler("cuda"), sgd(*params)
    for bad in (None, 0, 1):
        before = [param.tolist() for param in params]
        for param in params:
            scaler.scale(param.sum()).backward()
        if bad is not None:
            params[bad].grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert (before == [param.tolist() for param in params]) == (bad is not None)
    assert isinstance(params[0], nn.Parameter) and scaler.get_scale() == 1.0

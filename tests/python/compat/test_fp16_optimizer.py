"""apex's FP16_Optimizer against hand-written float32 masters."""

import copy
import math
import pickle

import pytest
import torch
from apex.amp.scaler import LossScaler
from apex.fp16_utils import FP16_Optimizer, convert_network
from torch import nn

DYNAMIC = {"dynamic_loss_scale": True, "verbose": False}


def make(device, optimizer=torch.optim.SGD, lr=0.125, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).to(device)
    model = convert_network(model, torch.half)
    return model, FP16_Optimizer(optimizer(model.parameters(), lr=lr), **options)


def loss_of(model, seed=0, factor=1.0):
    device = next(model.parameters()).device
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)).to(device).half()
    hidden = model[1](model[0](x).float()).half()
    return factor * model[2](hidden).float().square().mean()


def step(model, optimizer, seed=0, factor=1.0):
    optimizer.zero_grad()
    optimizer.backward(loss_of(model, seed, factor))
    optimizer.step()


def values(optimizer):
    return [param.detach().clone() for param in optimizer.all_params]


def test_masters_are_in_the_groups_at_once(device):
    model, optimizer = make(device)
    low, (masters,), (wide,) = (
        optimizer.fp16_groups[0],
        optimizer.fp32_from_fp16_groups,
        optimizer.fp32_from_fp32_groups,
    )
    assert [p.dtype for p in low] == [torch.float16] * 4 and len(masters) == 4 and len(wide) == 2
    assert all(param.dtype == torch.float32 for param in optimizer.all_params)
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    assert wide[0] is model[1].weight


@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_a_step_is_the_step_of_the_masters(scale, device):
    model, optimizer = make(device, static_loss_scale=scale)
    before = values(optimizer)
    optimizer.zero_grad()
    optimizer.backward(loss_of(model))
    params = dict(zip(optimizer.fp32_from_fp16_groups[0], optimizer.fp16_groups[0]))
    for master in optimizer.all_params:
        low = params.get(master)
        assert low is None or master.grad is low.grad
    grads = [master.grad.clone() for master in optimizer.all_params]
    optimizer.step()
    for master, old, grad in zip(optimizer.all_params, before, grads):
        torch.testing.assert_close(master.detach(), old - 0.125 * grad)
        if master in params:
            assert torch.equal(params[master], master.half())


def test_two_backwards_add_up(device):
    """apex divided the float32 parameters' first grads by the scale twice."""
    model, optimizer = make(device, static_loss_scale=64.0)
    optimizer.backward(loss_of(model, 0))
    first = [param.grad.clone() for param in optimizer.all_params]
    optimizer.backward(loss_of(model, 1))
    both = [param.grad.clone() for param in optimizer.all_params]
    optimizer.zero_grad()
    optimizer.backward(loss_of(model, 1))
    for one, two, sum_of in zip(first, [p.grad for p in optimizer.all_params], both):
        torch.testing.assert_close(one + two, sum_of)


def test_unscaling_can_wait(device):
    model, optimizer = make(device, static_loss_scale=64.0)
    optimizer.backward(loss_of(model, 0), update_master_grads=False)
    assert optimizer.fp32_from_fp16_groups[0][0].grad is None
    optimizer.backward(loss_of(model, 1), update_master_grads=False)
    optimizer.update_master_grads()
    late = [param.grad.clone() for param in optimizer.all_params]
    optimizer.zero_grad()
    optimizer.backward(loss_of(model, 0))
    optimizer.backward(loss_of(model, 1))
    at_once = [param.grad for param in optimizer.all_params]
    torch.testing.assert_close(late, at_once, rtol=1e-2, atol=1e-3)


def test_a_dynamic_scale_skips_halves_and_grows(device, heard):
    arguments = {"init_scale": 256.0, "scale_factor": 4.0, "scale_window": 2}
    model, optimizer = make(device, dynamic_loss_scale=True, dynamic_loss_args=arguments)
    assert optimizer.loss_scale == 256.0
    before = values(optimizer)
    step(model, optimizer, factor=math.inf)
    assert optimizer.loss_scale == 64.0
    assert all(torch.equal(a, b) for a, b in zip(before, values(optimizer)))
    assert "step skipped, the loss scale is now 64.0" in heard.take()
    step(model, optimizer)
    step(model, optimizer)
    assert optimizer.loss_scale == 256.0
    assert not torch.equal(before[0], values(optimizer)[0])


def test_the_defaults_of_a_dynamic_scale_are_apexs(device):
    _, optimizer = make(device, **DYNAMIC)
    assert optimizer.loss_scale == 2.0**16
    optimizer.loss_scale = 2.0**20
    assert optimizer.loss_scaler.loss_scale() == 2.0**20


def test_an_overflow_before_a_clean_backward_still_skips(device):
    model, optimizer = make(device, **DYNAMIC)
    before = values(optimizer)
    optimizer.backward(loss_of(model, factor=math.inf))
    optimizer.backward(loss_of(model))
    assert optimizer.overflow
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, values(optimizer)))
    assert not optimizer.overflow


def test_clipping(device):
    model, optimizer = make(device, dynamic_loss_scale=True)
    optimizer.backward(loss_of(model))
    norm = torch.cat([param.grad.flatten() for param in optimizer.all_params]).norm()
    torch.testing.assert_close(optimizer.clip_master_grads(1e-3), norm)
    clipped = torch.cat([param.grad.flatten() for param in optimizer.all_params]).norm()
    torch.testing.assert_close(clipped.item(), 1e-3, rtol=1e-3, atol=0)
    optimizer.zero_grad()
    optimizer.backward(loss_of(model, factor=math.inf))
    assert optimizer.clip_master_grads(1.0) == -1


def test_zero_grad_fills_or_drops(device):
    model, optimizer = make(device)
    optimizer.backward(loss_of(model))
    optimizer.zero_grad()
    assert all(not param.grad.any() for param in model.parameters())
    assert optimizer.fp32_from_fp16_groups[0][0].grad is None
    optimizer.backward(loss_of(model))
    optimizer.zero_grad(set_grads_to_None=True)
    assert all(param.grad is None for param in model.parameters())


def test_a_closure_is_refused(device):
    model, optimizer = make(device)
    optimizer.backward(loss_of(model))
    before = values(optimizer)
    with pytest.raises(RuntimeError) as raised:
        optimizer.step(lambda: None)
    assert str(raised.value) == (
        "FP16_Optimizer.step: expected no closure, got one; amp.initialize with a fixed loss_scale "
        "takes closures"
    )
    assert all(torch.equal(a, b) for a, b in zip(before, values(optimizer)))
    optimizer.step()
    assert not torch.equal(before[0], values(optimizer)[0])


def test_an_exception_in_backward_leaves_grads_as_they_were(device):
    model, optimizer = make(device, static_loss_scale=4.0)
    optimizer.backward(loss_of(model))
    before = [param.grad.clone() for param in model.parameters()]
    handle = model[0].weight.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        optimizer.backward(loss_of(model))
    handle.remove()
    assert torch.equal(before[2], model[1].weight.grad)


def test_checkpoints_hold_the_masters(device):
    model, optimizer = make(device, torch.optim.Adam, lr=1e-3, **DYNAMIC)
    for seed in range(3):
        step(model, optimizer, seed)
    keys = {"loss_scaler", "dynamic_loss_scale", "overflow"}
    saved = copy.deepcopy(optimizer.state_dict())
    assert set(saved) == keys | {"optimizer_state_dict", "fp32_from_fp16"}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    again, resumed = make(device, torch.optim.Adam, lr=1e-3, **DYNAMIC)
    again.load_state_dict(state)
    resumed.load_state_dict(saved)
    for seed in range(3, 6):
        step(model, optimizer, seed)
        step(again, resumed, seed)
    assert all(torch.equal(a, b) for a, b in zip(values(optimizer), values(resumed)))


def test_a_checkpoint_of_apexs_loads(device):
    """It holds apex's object, of a class whose attributes are properties here."""
    scaler = LossScaler.__new__(LossScaler)
    vars(scaler).update(_loss_scale=512.0, _unskipped=7)
    _, optimizer = make(device, **DYNAMIC)
    saved = pickle.loads(pickle.dumps({**optimizer.state_dict(), "loss_scaler": scaler}))
    optimizer.load_state_dict(saved)
    assert optimizer.loss_scaler.state() == (512.0, 7)


def test_momenta_from_before_become_float32(device):
    model = nn.Linear(4, 3).half().to(device)
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    inner.step()
    FP16_Optimizer(inner)
    assert all(
        inner.state[param]["momentum_buffer"].dtype == torch.float32
        for param in inner.param_groups[0]["params"]
    )


def test_wrong_uses_are_refused(device):
    params = [nn.Parameter(torch.ones(2, dtype=torch.float64, device=device))]
    with pytest.raises(TypeError, match=r"params\[0\] of group 0 .* got torch.float64"):
        FP16_Optimizer(torch.optim.SGD(params, 0.1))
    with pytest.raises(RuntimeError, match="expected state_dict.. to be saved"):
        pickle.dumps(make(device)[1])

"""apex.fp16_utils' functions and loss scalers."""

import math

import pytest
import torch
from apex import fp16_utils
from apex.fp16_utils import *  # noqa: F403  as programs do
from torch import nn

NAMES = """BN_convert_float network_to_half prep_param_lists model_grads_to_master_grads
master_params_to_model_params tofp16 to_python_float clip_grad_norm convert_module convert_network
FP16Model FP16_Optimizer LossScaler DynamicLossScaler""".split()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.plain_norm = nn.BatchNorm1d(8, affine=False)
        self.register_buffer("shift", torch.ones(8))
        self.register_buffer("count", torch.ones(1, dtype=torch.int64))

    def forward(self, x):
        return self.plain_norm(self.norm(self.first(x)) + self.shift)


def dtypes(module):
    return {name: tensor.dtype for name, tensor in module.state_dict().items()}


HALF = {
    "first.weight": torch.float16,
    "first.bias": torch.float16,
    "norm.weight": torch.float32,
    "norm.bias": torch.float32,
    "norm.running_mean": torch.float32,
    "norm.running_var": torch.float32,
    "norm.num_batches_tracked": torch.int64,
    "plain_norm.running_mean": torch.float16,
    "plain_norm.running_var": torch.float16,
    "plain_norm.num_batches_tracked": torch.int64,
    "shift": torch.float16,
    "count": torch.int64,
}


def test_the_star_brings_every_name():
    assert set(NAMES) <= set(globals()) and set(NAMES) == set(fp16_utils.__all__)


def test_convert_network_keeps_affine_batch_norms():
    net = Net()
    params = list(net.parameters())
    assert fp16_utils.convert_network(net, torch.float16) is net
    assert dtypes(net) == HALF
    assert all(a is b for a, b in zip(params, net.parameters()))


def test_network_to_half_casts_its_input(device):
    net = fp16_utils.network_to_half(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).to(device))
    assert "1.0.weight" in net.state_dict() and net[1][0].weight.dtype == torch.float16
    assert net[1][1].weight.dtype == torch.float32
    assert net(torch.randn(5, 4, device=device)).dtype == torch.float16


def test_bn_convert_float_takes_affine_norms_alone():
    net = Net().half()
    assert fp16_utils.BN_convert_float(net) is net
    assert dtypes(net) == HALF


def test_convert_module_leaves_children_alone():
    net = Net()
    net.own = nn.Parameter(torch.ones(2))
    net.own.grad = torch.ones(2)
    fp16_utils.convert_module(net, torch.bfloat16)
    assert net.own.dtype == net.own.grad.dtype == net.shift.dtype == torch.bfloat16
    assert net.first.weight.dtype == torch.float32 and net.count.dtype == torch.int64


def test_fp16_model_casts_every_input(device):
    class Sum(nn.Module):
        def forward(self, *inputs):
            return [x.dtype for x in inputs]

    model = fp16_utils.FP16Model(Sum())
    assert model(torch.ones(2), torch.ones(2, dtype=torch.float64)) == [torch.float16] * 2


@pytest.mark.parametrize("flat", [False, True])
def test_a_loop_by_hand_trains_masters(flat, device):
    torch.manual_seed(0)
    model = fp16_utils.convert_network(nn.Sequential(nn.Linear(4, 3)), torch.half).to(device)
    model.add_module("frozen", nn.Linear(3, 3).half().to(device).requires_grad_(False))
    model_params, masters = fp16_utils.prep_param_lists(model, flat_master=flat)
    assert len(model_params) == 2 and len(masters) == (1 if flat else 2)
    assert all(m.dtype == torch.float32 and m.requires_grad and m.is_leaf for m in masters)
    optimizer = torch.optim.SGD(masters, 2.0**-13)
    before = [master.detach().clone() for master in masters]
    for _ in range(3):
        for param in model_params:
            param.grad = torch.ones_like(param)
        fp16_utils.model_grads_to_master_grads(model_params, masters, flat_master=flat)
        optimizer.step()
        fp16_utils.master_params_to_model_params(model_params, masters, flat_master=flat)
    for master, old in zip(masters, before):
        torch.testing.assert_close(master.detach(), old - 3 * 2.0**-13, rtol=0, atol=1e-7)
    wide = torch.cat([master.detach().flatten() for master in masters])
    got = torch.cat([param.detach().flatten() for param in model_params])
    assert torch.equal(got, wide.half())


def test_a_flat_masters_grad_is_there_and_zero():
    """In apex the result was uninitialised, and every parameter needed a grad."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    params, (master,) = fp16_utils.prep_param_lists(model, flat_master=True)
    assert not master.grad.any()
    params[0].grad = torch.ones_like(params[0])
    fp16_utils.model_grads_to_master_grads(params, [master], flat_master=True)
    assert master.grad[:12].tolist() == [1.0] * 12 and not master.grad[12:].any()


def test_a_param_without_a_grad_leaves_its_master_without():
    params, masters = fp16_utils.prep_param_lists(nn.Linear(4, 3).half())
    params[0].grad = torch.full_like(params[0], 0.5)
    masters[1].grad = torch.ones_like(masters[1])
    fp16_utils.model_grads_to_master_grads(params, masters)
    assert masters[0].grad.dtype == torch.float32 and masters[0].grad[0, 0] == 0.5
    assert masters[1].grad is None


def test_small_helpers():
    assert fp16_utils.to_python_float(torch.tensor([2.5])) == 2.5
    assert fp16_utils.to_python_float([3.5]) == 3.5
    assert fp16_utils.tofp16()(torch.ones(2)).dtype == torch.float16
    assert fp16_utils.clip_grad_norm is nn.utils.clip_grad_norm_


def test_a_static_scaler_scales_and_judges_nothing():
    scaler = fp16_utils.LossScaler(4)
    param = nn.Parameter(torch.ones(1))
    scaler.backward(param * math.inf)
    assert scaler.loss_scale == scaler.cur_scale == 4 and not scaler.has_overflow([param])
    scaler.update_scale(True)
    assert scaler.loss_scale == 4
    scaled = scaler.scale_gradient(None, (torch.ones(1), None), ())
    assert scaled[0].item() == 4 and scaled[1] is None


def test_a_dynamic_scaler_moves_by_apexs_rule():
    scaler = fp16_utils.DynamicLossScaler(init_scale=4, scale_factor=2.0, scale_window=2)
    trajectory = []
    for overflow in [False, False, True, True, True, False, False, False, False]:
        scaler.update_scale(overflow)
        trajectory.append(scaler.loss_scale)
    assert trajectory == [4, 8, 4, 2, 1, 1, 2, 2, 4]
    fresh = fp16_utils.DynamicLossScaler()
    assert (fresh.loss_scale, fresh.scale_window, fresh.scale_factor) == (2**32, 1000, 2.0)


@pytest.mark.parametrize(
    ("value", "overflows"), [(math.nan, True), (-math.inf, True), (1e30, False)]
)
def test_a_dynamic_scaler_sees_what_is_not_finite(value, overflows, device):
    """apex treated finite grads whose sum overflows as infinite."""
    params = [nn.Parameter(torch.ones(1000, device=device)) for _ in range(2)]
    assert not fp16_utils.DynamicLossScaler().has_overflow(params)
    params[1].grad = torch.full((1000,), value if overflows else 3e38, device=device)
    assert fp16_utils.DynamicLossScaler().has_overflow(params) is overflows

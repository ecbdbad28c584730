"""apex's optimizers over large and many tensors, in every type, against a plain float64 one."""

import math

import apex
import pytest
import torch
from apex import amp
from apex.parallel.LARC import LARC
from torch import nn

HALF, FLOAT, BFLOAT = torch.float16, torch.float32, torch.bfloat16
STEPS = 7
SHAPES = {
    "one": [(1,)],
    "large": [(278011,)],
    "many": [(409, 102), (4096,), (1,), (2048 * 32 + 1,), (323, 102), (1,)],
    "images": [(3, 4, 2, 3), (16, 8, 3, 3)],
}
ADAM = {"lr": 5e-4, "betas": (0.9, 0.999), "eps": 1e-8}
QUICK = {"lr": 0.01, "betas": (0.6, 0.9), "eps": 3e-6}
NOVOGRAD = {
    "lr": 1e-3,
    "betas": (0.95, 0.0),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "grad_averaging": False,
    "bias_correction": False,
    "reg_inside_moment": True,
    "init_zero": False,
}


class ByHand(torch.optim.Optimizer):
    """`rule(param, grad, state, group, grads)` gives the change of a parameter."""

    def __init__(self, params, rule, **options):
        super().__init__(params, options)
        self.rule = rule

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            grads = [param.grad for param in group["params"]]
            for param, grad in zip(group["params"], grads):
                param += self.rule(param, grad, self.state[param], group, grads)


def lamb(p, g, state, group, grads):
    (beta1, beta2), step = group["betas"], state.get("step", 0) + 1
    g = g / max(1.0, math.hypot(*[grad.norm().item() for grad in grads]))
    m = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * g
    v = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * g * g
    state.update(step=step, m=m, v=v)
    change = m / (1 - beta1**step) / ((v / (1 - beta2**step)).sqrt() + group["eps"])
    change = change + group["weight_decay"] * p
    return -group["lr"] * p.norm() / change.norm() * change


def novograd(p, g, state, group, grads):
    m = group["betas"][0] * state.get("m", torch.zeros_like(p)) + g / (g.norm() + group["eps"])
    state["m"] = m
    return -group["lr"] * m


def of(kind, **always):
    return lambda params, **options: kind(params, **{**always, **options})


#: (apex's, plain, options)
CASES = {
    "adam": (of(apex.optimizers.FusedAdam, adam_w_mode=False), torch.optim.Adam, ADAM),
    "adam, quick": (of(apex.optimizers.FusedAdam, adam_w_mode=False), torch.optim.Adam, QUICK),
    "adagrad": (
        apex.optimizers.FusedAdagrad,
        torch.optim.Adagrad,
        {"lr": 5e-4, "eps": 1e-8, "weight_decay": 1e-5},
    ),
    "adagrad, quick": (
        apex.optimizers.FusedAdagrad,
        torch.optim.Adagrad,
        {"lr": 0.01, "eps": 3e-6, "weight_decay": 0.0},
    ),
    "sgd": (apex.optimizers.FusedSGD, torch.optim.SGD, {"lr": 0.25, "momentum": 0.125}),
    "novograd": (apex.optimizers.FusedNovoGrad, of(ByHand, rule=novograd), NOVOGRAD),
}
for name, options in {"lamb": ADAM, "lamb, quick": QUICK}.items():
    for decay in (0.0, 0.01):
        CASES[f"{name}, {decay}"] = (
            of(apex.optimizers.FusedLAMB, use_nvlamb=True),
            of(ByHand, rule=lamb),
            {**options, "weight_decay": decay},
        )


def tensors(shapes, dtype, device):
    generator = torch.Generator().manual_seed(9)
    return [torch.rand(size, generator=generator).to(device, dtype) for size in shapes]


def steps(make, params, options, grads_like, layout=torch.contiguous_format):
    """Trains params for STEPS steps by the same grads in any type, and rounds params to theirs."""
    optimizer = make(params, **options)
    generator = torch.Generator().manual_seed(77)
    for _ in range(STEPS):
        for param in params:
            grad = torch.rand(param.shape, generator=generator).to(param.device)
            param.grad = grad.to(grads_like).to(param.dtype)
        optimizer.step()
        if params[0].dtype == torch.float64:
            for param in params:
                param.data.copy_(param.to(grads_like))
    return [param.detach() for param in params]


#: A step may round to the neighbour of the nearest number.
NEAR = {
    FLOAT: {"rtol": 1e-5, "atol": 1e-6},
    HALF: {"rtol": 2e-3, "atol": 2e-3},
    BFLOAT: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


@pytest.mark.parametrize("dtype", [FLOAT, HALF, BFLOAT])
@pytest.mark.parametrize("shapes", ["one", "large", "many"])
@pytest.mark.parametrize("case", CASES)
def test_seven_steps(case, shapes, dtype, device):
    fused, plain, options = CASES[case]
    if dtype != FLOAT:
        options = {**options, "lr": 0.125}  # so that steps are not rounded away
    start = tensors(SHAPES[shapes], dtype, device)
    got = steps(fused, [nn.Parameter(t.clone()) for t in start], options, dtype)
    wanted = steps(plain, [nn.Parameter(t.double()) for t in start], options, dtype)
    assert all(not torch.equal(a, b) for a, b in zip(got, start))
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a.double(), b, **NEAR[dtype])


@pytest.mark.parametrize("grads", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("params", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
@pytest.mark.parametrize("case", CASES)
def test_layouts_of_params_and_grads_do_not_matter(case, dtype, params, grads, device):
    fused, _, options = CASES[case]

    def train(params_format, grads_format):
        trained = [
            nn.Parameter(t.to(memory_format=params_format))
            for t in tensors(SHAPES["images"], dtype, device)
        ]
        optimizer = fused(trained, **options)
        for seed in range(STEPS):
            generator = torch.Generator().manual_seed(seed)
            for param in trained:
                grad = torch.rand(param.shape, generator=generator).to(device, dtype)
                param.grad = grad.to(memory_format=grads_format)
            optimizer.step()
        assert all(p.is_contiguous(memory_format=params_format) for p in trained)
        return trained

    got, wanted = train(params, grads), train(torch.contiguous_format, torch.contiguous_format)
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b, **NEAR[dtype])


ALL = [
    apex.optimizers.FusedAdagrad,
    apex.optimizers.FusedAdam,
    apex.optimizers.FusedLAMB,
    apex.optimizers.FusedNovoGrad,
    of(apex.optimizers.FusedSGD, lr=0.1),
]


@pytest.mark.parametrize("dtype", [HALF, BFLOAT, FLOAT])
@pytest.mark.parametrize("kind", ALL)
def test_zeroed_grads_are_the_same_buffers(kind, dtype, device):
    first, second, unused = (
        nn.Parameter(torch.ones(size, dtype=dtype, device=device)) for size in [(2, 3), 3, 1]
    )
    first.grad = torch.full_like(first, 3.0, requires_grad=True)
    second.grad = torch.arange(6, dtype=dtype, device=device)[::2]
    buffers = [first.grad, second.grad]
    optimizer = kind([{"params": [first]}, {"params": [second, unused]}], set_grad_none=False)
    for _ in range(2):
        optimizer.zero_grad()
        assert first.grad is buffers[0] and second.grad is buffers[1] and unused.grad is None
        assert not first.grad.any() and not second.grad.any() and not first.grad.requires_grad
    assert all(bool((param == 1).all()) for param in (first, second, unused))

    optimizer = kind([first, second], set_grad_none=True)
    for _ in range(2):
        optimizer.zero_grad()
        assert first.grad is None and second.grad is None


# LARC, with the numbers of a program that adapts its masters' grads itself.


@pytest.mark.parametrize("inner", [torch.optim.SGD, apex.optimizers.FusedSGD])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
def test_larc_adapts_true_grads(level, inner, device):
    lr, trust, momentum = 0.25, 0.02, 0.125
    model = nn.Linear(4, 1, bias=False).to(device)
    exact, buffer = model.weight.detach().double(), None
    optimizer = LARC(inner([{"params": model.parameters(), "lr": lr}], momentum=momentum), trust)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=level, loss_scale=64.0, verbosity=0
    )
    grad = torch.tensor([[0.5, -1.0, 2.0, 4.0]], device=device)
    for _ in range(4):
        optimizer.zero_grad()
        with amp.scale_loss(model(grad).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        rate = trust * exact.norm() / grad.double().norm()
        adapted = grad.double() * min(rate / lr, 1.0)
        buffer = adapted if buffer is None else momentum * buffer + adapted
        exact = exact - lr * buffer
    (master,) = amp.master_params(optimizer)
    torch.testing.assert_close(master.double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.equal(model.weight, master.to(model.weight.dtype))

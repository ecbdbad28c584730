"""The functional form of the fused optimizers' step."""

import pytest
import torch

from torchamp import ops, optimizers

SIZES = [(3,), (40, 7), (1000,)]
ALGORITHM = ops.StepAlgorithm.ADAM
ADAMW = [1e-3, 0.9, 0.999, 1e-8, 1e-2, 1, 0, 1]


def arguments(device, count=3):
    """Arguments of a first step of AdamW with torch's defaults."""
    torch.manual_seed(0)
    tensors = lambda: [torch.randn(size, device=device) for size in SIZES[:count]]  # noqa: E731
    params = tensors()
    hyper = torch.zeros(1, 12, dtype=torch.float64)
    hyper[0, :8] = torch.tensor(ADAMW, dtype=torch.float64)
    return {
        "grads": tensors(),
        "params": params,
        "states": [torch.zeros_like(param) for param in params * 2],
        "steps": torch.zeros(count, device=device),
        "hyper": hyper,
        "groups": torch.zeros(count, dtype=torch.int32),
    }


def test_it_is_the_optimizers_step(device):
    given = arguments(device)
    params = [torch.nn.Parameter(param.clone()) for param in given["params"]]
    optimizer = optimizers.FusedAdamW(params)
    for _ in range(3):
        ops.fused_step(ALGORITHM, **given)
        for param, grad in zip(params, given["grads"]):
            param.grad = grad
        optimizer.step()
    assert all(map(torch.equal, given["params"], params))
    assert given["steps"].eq(3).all()


@pytest.mark.soak
def test_ten_thousand_steps_end_no_further_off_than_torchs():
    torch.manual_seed(1)
    start, target = torch.randn(64, dtype=torch.float64), torch.randn(64, dtype=torch.float64)

    def trained(dtype, make):
        param, goal = torch.nn.Parameter(start.to(dtype)), target.to(dtype)
        optimizer = make([param], 1e-3, weight_decay=0.1)
        for step in range(10_000):
            param.grad = (param.detach() - goal) * (1 + step % 7)
            optimizer.step()
        return param.detach().double()

    exact = trained(torch.float64, torch.optim.AdamW)
    ours = trained(torch.float32, optimizers.FusedAdamW)
    theirs = trained(torch.float32, torch.optim.AdamW)
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm() + 1e-6


@pytest.mark.card
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 20 * 2**30,
    reason="takes a card with 20 GiB free",
)
def test_more_elements_than_an_int_counts():
    count = 2**31 + 8
    param = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
    grad = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
    grad[:8], grad[-8:] = 1, -1
    given = arguments("cuda", 1)
    given.update(grads=[grad], params=[param], states=[])
    given["hyper"][0] = 0
    given["hyper"][0, 0] = 0.5
    ops.fused_step(ops.StepAlgorithm.SGD, **given)
    assert param[:8].eq(-0.5).all() and param[-8:].eq(0.5).all()
    assert not param[8:-8].any()

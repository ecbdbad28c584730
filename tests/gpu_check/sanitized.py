"""Runs every kernel once or twice on small lists with awkward sizes and addresses, for
compute-sanitizer to watch.

    compute-sanitizer --tool memcheck python tests/gpu_check/sanitized.py cuda
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from torchamp import amp, ops, optimizers

SIZES = (1, 3, 31, 257, 4097, 70_001)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)

OPTIMIZERS = (
    optimizers.FusedAdam,
    lambda params: optimizers.FusedAdam(params, state_dtype=torch.bfloat16),
    optimizers.FusedLAMB,
    optimizers.FusedNovoGrad,
    lambda params: optimizers.FusedSGD(params, 0.1, momentum=0.9),
)

LEVELS = (
    {"opt_level": "O2"},
    {"opt_level": "O2", "materialize_master_grads": False},
    {"opt_level": "O5"},
)


def tensors(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Each size in its own allocation, starting at the first element and at the second."""
    whole = [torch.randn(size + 1).to(device, dtype) for size in SIZES]
    return [t[:-1] for t in whole] + [t[1:].clone() for t in whole] + [t[1:] for t in whole]


def run_ops(source: torch.dtype, target: torch.dtype, device: str) -> None:
    inputs, outputs = tensors(source, device), tensors(target, device)
    found_inf, scale = (torch.tensor(value, device=device) for value in (0.0, 1024.0))
    ops.unscale(inputs, outputs, scale.reciprocal(), found_inf)
    ops.unscale(inputs, outputs, scale.reciprocal(), found_inf, accumulate=True)
    ops.scale(inputs, outputs, 0.5, found_inf)
    ops.axpby(0.5, inputs, 2.0, outputs, outputs, found_inf)
    ops.copy_cast(inputs, outputs)
    ops.check(inputs, found_inf)
    ops.l2norm(inputs, per_tensor=True)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        matrices = [each.reshape(-1, 3 if each.numel() % 3 == 0 else 1) for each in inputs]
        ops.float8_cast(matrices, ops.float8_scales(inputs, dtype=dtype), dtype=dtype)
    growth = torch.zeros((), dtype=torch.int32, device=device)
    ops.update_scale(scale, growth, found_inf, ops.ScaleRule(growth_interval=1))
    assert found_inf.item() == 0 and scale.item() == 2048


def train(make, options: dict, device: str) -> None:
    net = nn.Sequential(nn.Linear(31, 33), nn.ReLU(), nn.Linear(33, 5)).to(device)
    model, optimizer = amp.initialize(net, make(net.parameters()), verbosity=0, **options)
    overflow = float("inf") if options["opt_level"] == "O2" else 1.0  # O5 skips no step
    for factor, is_clipped in ((1.0, False), (overflow, True), (1.0, True)):
        optimizer.zero_grad()
        loss = model(torch.randn(7, 31).to(device)).float().square().mean() * factor
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        if is_clipped:
            amp.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


def main(device: str) -> None:
    for source in DTYPES:
        for target in DTYPES:
            run_ops(source, target, device)
    for make in OPTIMIZERS:
        for options in LEVELS:
            train(make, options, device)
    print("every kernel was run")


if __name__ == "__main__":
    main(sys.argv[1])

"""The fused step of every algorithm, on float16 grads and models with float32 masters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from workloads import Shapes, random_tensors

from torchamp import ops

Which = ops.StepAlgorithm
COLUMNS = 12


@dataclass(frozen=True)
class Algorithm:
    """states: number of state tensors per parameter. hyper: its columns of ops.fused_step.
    reads_grads: reads the model's float16 grads, else float32 grads. writes_model: writes the
    rounded master to the model."""

    which: Which
    states: int
    hyper: tuple[float, ...]
    reads_grads: bool = True
    writes_model: bool = True

    @property
    def bytes_per_element(self) -> int:
        """Reads grad, master and states; writes master, states and model."""
        grad = 2 if self.reads_grads else 4
        return grad + 8 * (1 + self.states) + (2 if self.writes_model else 0)


_ADAM = (1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 0, 1)
_SGD = (1e-3, 0.0, 0, 0, 0, 0, 0)
_MOMENTUM = (1e-3, 0.9, *_SGD[2:])
_NOVOGRAD = (1e-3, 0.95, 0.98, 1e-8, 0, 0, 0, 0, 0, 0)
_LAMB = (1e-3, 0.9, 0.999, 1e-6, 0.01, 1, 0, 1, 1, 0, 0)

ALGORITHMS = {
    "step, Adam": Algorithm(Which.ADAM, 2, _ADAM),
    "step, SGD": Algorithm(Which.SGD, 0, _SGD),
    "step, momentum": Algorithm(Which.MOMENTUM, 1, _MOMENTUM),
    "step, NovoGrad": Algorithm(Which.NOVOGRAD, 1, _NOVOGRAD),
    "step, LAMB's update": Algorithm(Which.LAMB, 3, _LAMB, writes_model=False),
    "step, LAMB's application": Algorithm(Which.LAMB_APPLY, 0, _LAMB, reads_grads=False),
}


def step_of(algorithm: Algorithm, shapes: Shapes, device: str) -> Callable[[], None]:
    """A step on newly allocated tensors."""
    count = len(shapes)
    grad_dtype = torch.float16 if algorithm.reads_grads else torch.float32
    grads = random_tensors(shapes, grad_dtype, device)
    masters = random_tensors(shapes, torch.float32, device)
    states = [master.square() for _ in range(algorithm.states) for master in masters]
    models = [master.half() for master in masters] if algorithm.writes_model else ()
    norms = torch.ones(count, device=device)
    unused = (0.0,) * (COLUMNS - len(algorithm.hyper))
    hyper = torch.tensor([algorithm.hyper + unused], dtype=torch.float64, device=device)
    arguments = dict(
        model_params=models,
        grad_factor=torch.full((), 2.0**-16, device=device),
        skip=torch.zeros((), device=device),
        param_norms=norms,
        update_norms=norms,
        norm_averages=norms.clone(),
    )
    steps = torch.zeros(count, device=device)
    groups = torch.zeros(count, dtype=torch.int32, device=device)
    return lambda: ops.fused_step(
        algorithm.which, grads, masters, states, steps, hyper, groups, **arguments
    )

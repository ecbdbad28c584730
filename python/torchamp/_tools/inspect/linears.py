"""Linears that are slower in float8, each by itself: for amp.preflight."""

from __future__ import annotations

import functools

import torch
from torch import nn

from torchamp._tools.inspect.iteration import Iteration
from torchamp._tools.inspect.watch import unchanged
from torchamp.amp._amp import Amp

#: How many are named.
_FEW = 3


def losing_linears(iteration: Iteration) -> str:
    """The sentences of a note on them, after a space; "" where there are none."""
    loses = functools.cache(_loses)
    with unchanged(iteration.model):
        losing = {name: loses(*shape) for name, *shape in _products(iteration.of_copy())}
    slow = [name for name in losing if losing[name]]
    if len(slow) in (0, len(losing)):
        return " Each linear by itself is slower in float8." if slow else ""
    more = f" and {len(slow) - _FEW} more" if len(slow) > _FEW else ""
    text = f" Slower in float8, each by itself: {', '.join(slow[:_FEW])}{more}."
    modules = dict(iteration.model.named_modules(remove_duplicate=False))
    owners = dict.fromkeys(n if n in modules else n.rpartition(".")[0] for n in losing)
    rest = [o for o in filter(None, owners) if not any(f"{n}.".startswith(f"{o}.") for n in slow)]
    return f"{text} float8={rest} takes the others." if rest else text


def _products(twin: Iteration) -> list[tuple[str, int, int, int, torch.device]]:
    """The name of each linear in float8, the rows of its last input, K, N and the device."""
    with Amp(twin.model, None, "O5", verbosity=0, float8=True):
        twin.run(lambda op: None)
        products = [] if twin.float8 is None else twin.float8.products()
    return [(name, rows, *weight.shape[::-1], weight.device) for name, weight, rows in products]


def _loses(rows: int, inputs: int, outputs: int, device: torch.device) -> bool:
    """Whether one linear, forward and backward, takes no less time in float8 than at O5 alone."""
    x = torch.randn(rows, inputs, dtype=torch.bfloat16, device=device, requires_grad=True)
    times = []
    for float8 in (False, ["0"]):
        model = nn.Sequential(nn.Linear(inputs, outputs, bias=False, device=device))
        with Amp(model, None, "O5", verbosity=0, float8=float8):
            times.append(Iteration(model, x, torch.sum).time())
    plain, in_float8 = times
    return plain is not None and in_float8 is not None and in_float8 >= plain

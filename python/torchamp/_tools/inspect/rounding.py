"""The effect of rounded buffers and inputs on a model in float32: for amp.preflight."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_map_only

from torchamp._tools.inspect.iteration import Iteration, Outcome
from torchamp.amp._casts.cast import NONE, buffers_to_cast


def written_buffers(model: torch.nn.Module, written: list[str]) -> Iterator[tuple[str, str]]:
    """The buffers that a forward has written and O2, O3 and O5 round, with the name that keeps
    each in float32: that of its module, whose code may mix no dtypes, if no other is in it.
    """
    for name in buffers_to_cast(model, torch.bfloat16, keep_batchnorm_fp32=True, kept=NONE):
        module = name.rpartition(".")[0]
        is_part = any(True for _ in model.get_submodule(module).children())
        if name in written:
            yield name, name if is_part or not module else module


class Rounding:
    """Iterations of copies of a model whose buffers, those that a cast to `dtype` would change, or
    inputs have been rounded to `dtype`."""

    def __init__(self, iteration: Iteration, dtype: torch.dtype, keeps_norms: bool) -> None:
        self._iteration, self._dtype = iteration, dtype
        self._buffers = list(buffers_to_cast(iteration.model, dtype, keeps_norms, NONE))

    def of_all(self) -> Outcome:
        return self._outcome(self._buffers, with_inputs=True)

    def of_each(self) -> Iterator[tuple[str, str, Outcome]]:
        """The name, the remedy and the outcome of each buffer rounded, and of all inputs."""
        for name in self._buffers:
            yield f"buffer {name!r}", f"keep_fp32={name!r}", self._outcome([name])
        inputs = self._outcome([], with_inputs=True)
        yield "the inputs", "keep_fp32 with the names of forward's arguments", inputs

    def _outcome(self, names: list[str], with_inputs: bool = False) -> Outcome:
        twin = self._iteration.of_copy()
        for name in names:
            buffer = twin.model.get_buffer(name)
            buffer.copy_(self._rounded(buffer))
        if with_inputs:
            batch = tree_map_only(torch.Tensor, self._rounded, twin.batch)
            twin = dataclasses.replace(twin, batch=batch)
        return twin.run(lambda op: None)

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(self._dtype).to(tensor.dtype).requires_grad_(tensor.requires_grad)

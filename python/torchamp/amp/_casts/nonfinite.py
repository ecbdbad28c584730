"""Where a loss that is infinite or NaN comes from: the first output of a forward that is not
finite."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchamp._logging import log
from torchamp.amp._casts.explain import described
from torchamp.amp._casts.masters import LOW_PRECISION

_FOUND = (
    "loss not finite: the first tensor that is not is {}; amp.preflight, before initialize, shows "
    "what a format does not hold"
)
_NONE = "loss not finite: every output of the model's modules is; look at the loss function"


class FirstNonfinite:
    """Looks at the arguments of models, which are cast to `dtype`, and at the outputs of all their
    modules, in forwards from now until end(). Does not wait for the device, and sees no forward
    that runs in a graph of torch.compile."""

    def __init__(self, models: Iterable[torch.nn.Module], dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._what: list[str] = []
        self._are_finite: list[torch.Tensor] = []
        self._arrived: torch.cuda.Event | None = None
        self._hooks: list[Any] = []
        self._is_told = False
        for model in models:
            if dtype in LOW_PRECISION:
                see = self._see_arguments
                self._hooks.append(model.register_forward_pre_hook(see, with_kwargs=True))
            for module in model.modules():
                see_output = functools.partial(self._see_output, described(module, model))
                self._hooks.append(module.register_forward_hook(see_output))

    def __reduce__(self) -> tuple[Any, ...]:
        """The one of a model's copies and pickles does not look."""
        return FirstNonfinite, ((), None)

    def _see_arguments(self, model: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if torch.compiler.is_compiling() or not self._hooks:
            return
        names = inspect.signature(model.forward).parameters
        for name, argument in (*zip(names, args), *kwargs.items()):
            for tensor in _floating(argument):
                is_finite = tensor.isfinite() <= tensor.to(self._dtype).isfinite()
                self._note(f"argument {name!r} of the model, cast to {self._dtype}", is_finite)

    def _see_output(self, where: str, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._hooks:
            return
        for tensor in _floating(output):
            self._note(f"the output of {where}, in {tensor.dtype}", tensor.isfinite())

    def _note(self, what: str, are_finite: torch.Tensor) -> None:
        self._what.append(what)
        self._are_finite.append(are_finite.all())

    def end(self) -> None:
        """Sends what was seen to the host."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if not self._are_finite or not self._are_finite[0].is_cuda:
            return
        seen = torch.stack([each.to(self._are_finite[0].device) for each in self._are_finite])
        on_host = torch.empty(seen.shape, dtype=seen.dtype, pin_memory=True)
        self._are_finite = list(on_host.copy_(seen, non_blocking=True))
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(seen.device))

    def tell(self) -> None:
        """Logs what was found, once, if anything was seen and has arrived from the device."""
        is_known = self._arrived is None or self._arrived.query()
        if self._is_told or self._hooks or not self._what or not is_known:
            return
        found = [what for what, is_finite in zip(self._what, self._are_finite) if not is_finite]
        log(logging.INFO, _FOUND.format(found[0]) if found else _NONE)
        self._is_told = True


def _floating(value: Any) -> list[torch.Tensor]:
    """The tensors in it that outlive a forward: those within torch.func do not."""
    return [
        leaf.detach()
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
        and leaf.is_floating_point()
        and not torch._C._functorch.is_functorch_wrapped_tensor(leaf)
    ]

"""One iteration of a copy of a model, watched: for amp.preflight."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchamp._arguments import type_of
from torchamp._load import _C
from torchamp._tools.inspect.watch import Op, Watch, call_model, tensors_in, unchanged
from torchamp.amp._run.session import session_in_training

#: Watch's name for what runs outside of the model.
LOSS = "(loss)"
#: The most elements of a module's outputs and of grads that are compared.
_SAMPLES = 4096
#: How many iterations are timed, of which the fastest counts, and the seconds that they may take.
_TIMED, _SECONDS = 3, 1.0

_EXPECTED_LOSS = "preflight: expected a loss of one element with a grad_fn"

#: Makes a loss of what the model returns.
LossFunction = Callable[[Any], torch.Tensor]


@dataclasses.dataclass
class Outcome:
    """The results of one iteration."""

    loss: float = float("nan")
    #: In the order of the calls: the module's name, and elements of what it returned, in float32.
    outputs: list[tuple[str, torch.Tensor]] = dataclasses.field(default_factory=list)
    #: By parameter, in float32 and not scaled.
    grads: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    #: The names of buffers that the forward has written.
    written: list[str] = dataclasses.field(default_factory=list)
    note: str = ""  #: of SameDropout
    error: Exception | None = None
    #: The op that raised `error`, and its module.
    raised: tuple[str, str] | None = None

    @property
    def is_finite(self) -> bool:
        grads = all(bool(grad.isfinite().all()) for grad in self.grads.values())
        return self.has_finite_loss and grads

    @property
    def has_finite_loss(self) -> bool:
        return self.loss - self.loss == 0.0


@dataclasses.dataclass(frozen=True)
class Iteration:
    """A forward of a model, its loss and the backward. It changes the grads of parameters, and
    nothing else: buffers and torch's random numbers go on as if it had not run."""

    model: torch.nn.Module
    batch: Any
    loss_fn: LossFunction | None

    @property
    def float8(self) -> _C.Float8 | None:
        """The model's linears in float8, where initialize has put some into it."""
        session = session_in_training(self.model)
        return None if session is None else session.casts.float8

    def of_copy(self) -> Iteration:
        """That of a copy of the model without grads."""
        try:
            twin = copy.deepcopy(self.model)
        except Exception as error:
            raise RuntimeError(
                "preflight: expected a model that copy.deepcopy copies, got a "
                f"{type(self.model).__name__}, for which it raises {type(error).__name__}: {error}"
            ) from error
        for param in twin.parameters():
            param.grad = None
        return dataclasses.replace(self, model=twin)

    def run(self, see: Callable[[Op], None], scale: float = 1.0) -> Outcome:
        """Runs it in SameDropout. scale: what the loss is multiplied with before the backward."""
        outcome = Outcome()
        watch = Watch(self.model, see, outside=LOSS)
        batch = _detached(self.batch)
        self.model.zero_grad(set_to_none=True)
        with unchanged(self.model) as before, _sampled_outputs(self.model, outcome):
            try:
                with watch, _C.SameDropout():
                    loss = self._backward(batch, scale)
                outcome.loss = float(loss)
            except Exception as error:
                outcome.error, outcome.raised = error, watch.raised
            outcome.note = _C.SameDropout.note()
            outcome.written = [
                name
                for name, buffer in self.model.named_buffers()
                if name not in before or not torch.equal(buffer, before[name])
            ]
        outcome.grads = {
            name: param.grad.float() / scale
            for name, param in self.model.named_parameters()
            if param.grad is not None
        }
        return outcome

    def time(self, scale: float = 1.0) -> float | None:
        """Milliseconds of the fastest of some that nothing watches, after run(); None if one
        raises. Waits for the device."""
        devices = {param.device for param in self.model.parameters()}
        batch = _detached(self.batch)
        times: list[float] = []
        with unchanged(self.model):
            while len(times) < _TIMED and sum(times) < 1000 * _SECONDS:
                self.model.zero_grad(set_to_none=True)
                if self.float8 is not None:  # as after a step
                    self.float8.forget_copies()
                start = _synchronized(devices)
                try:
                    self._backward(batch, scale)
                except Exception:
                    return None
                times.append(1000 * (_synchronized(devices) - start))
        return min(times)

    @torch.enable_grad()
    def _backward(self, batch: Any, scale: float) -> torch.Tensor:
        """Returns the loss."""
        loss = _loss_of(call_model(self.model, batch), self.loss_fn)
        (loss.float() * scale).backward()
        return loss.detach()


def _synchronized(devices: set[torch.device]) -> float:
    """Seconds, by when the devices have nothing left to do."""
    for device in devices:
        torch.get_device_module(device).synchronize()
    return time.perf_counter()


def _loss_of(outputs: Any, loss_fn: LossFunction | None) -> torch.Tensor:
    loss = getattr(outputs, "loss", outputs) if loss_fn is None else loss_fn(outputs)
    remedy = "" if loss_fn else "; pass loss_fn, which makes the loss of what the model returns"
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"{_EXPECTED_LOSS}, got {type_of(loss)}{remedy}")
    if loss.numel() != 1 or not loss.requires_grad:
        grad = "with" if loss.requires_grad else "without"
        got = f"one of sizes {list(loss.shape)} {grad} one"
        raise ValueError(f"{_EXPECTED_LOSS}, got {got}{remedy}")
    return loss


def _detached(batch: Any) -> Any:
    """The batch, of tensors whose grads are those of this iteration alone."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().requires_grad_(batch.requires_grad)
    if isinstance(batch, dict):
        return {name: _detached(value) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return type(batch)(_detached(value) for value in batch)
    return batch


@contextlib.contextmanager
def _sampled_outputs(model: torch.nn.Module, outcome: Outcome) -> Iterator[None]:
    names = {module: name for name, module in model.named_modules()}

    def keep(module: torch.nn.Module, args: object, outputs: object) -> None:
        floating = [t for t in tensors_in(outputs) if t.is_floating_point() and t.numel()]
        with _disable_current_modes():
            samples = [_sample(tensor) for tensor in floating]
            outcome.outputs.append((names[module], torch.cat([*samples, torch.zeros(0)])))

    hooks = [module.register_forward_hook(keep) for module in names]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().flatten()
    step = -(-flat.numel() // _SAMPLES) | 1  # odd, to meet every column of a width of 2**n
    return flat[::step].float().cpu()

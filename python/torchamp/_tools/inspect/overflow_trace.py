"""amp.trace_overflow: where in the model overflows come from."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch.utils.hooks import RemovableHandle

from torchamp._arguments import module_of
from torchamp._tools.inspect.reduction import REMEDY, is_reduced
from torchamp._tools.inspect.trial import named
from torchamp._tools.inspect.watch import Op, Watch, floating, is_finite
from torchamp.amp._run.session import session_in_training

_MAX_NAMES = 3


@dataclasses.dataclass
class OverflowOrigin:
    """The first op that made inf or nan of finite inputs, after which grads were not finite."""

    iteration: int  #: the model's forwards in the context are counted from 0
    module: str  #: the innermost one that called the op; "" is the model, or what is outside of it
    op: str  #: ATen's name; "_to_copy" is a cast
    is_backward: bool
    dtype: torch.dtype  #: of what it made
    is_nan: bool  #: else inf
    magnitude: float  #: the largest of its inputs
    loss_scale: float | None  #: in that iteration; None unless initialize returned the model
    is_reduced: bool  #: a float16 product that is finite with float32 sums
    #: The names of the parameters whose grads were not finite.
    params: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        op = "a cast" if self.op == "_to_copy" else self.op
        when = "backward" if self.is_backward else "forward"
        scale = "" if self.loss_scale is None else f", loss scale {self.loss_scale:g}"
        more = f" and {len(self.params) - _MAX_NAMES} more" * (len(self.params) > _MAX_NAMES)
        return (
            f"iteration {self.iteration}{scale}: {op} of {named(self.module)} in the {when} makes "
            f"{'nan' if self.is_nan else 'inf'} in {str(self.dtype).replace('torch.', '')} of "
            f"inputs up to {self.magnitude:.3g}; grads not finite: "
            f"{', '.join(self.params[:_MAX_NAMES])}{more}{REMEDY * self.is_reduced}"
        )


class OverflowTrace:
    """The result of amp.trace_overflow; print it."""

    def __init__(self, model: torch.nn.Module) -> None:
        #: One for each iteration whose grads were not finite.
        self.origins: list[OverflowOrigin] = []
        #: The loss scale when each iteration began; of the first loss.
        self.loss_scales: list[float] = []
        self._model = module_of("trace_overflow", model)
        #: None outside of the context: it refers to this object.
        self._watch: Watch | None = None
        self._iteration = -1
        self._first: OverflowOrigin | None = None
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> OverflowTrace:
        self._hooks = [self._model.register_forward_pre_hook(self._begin)]
        for name, param in self._model.named_parameters():
            if param.requires_grad:
                hook = functools.partial(self._note, name)
                self._hooks.append(param.register_post_accumulate_grad_hook(hook))
        self._watch = Watch(self._model, self._see)
        self._watch.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._watch is not None:
            self._watch.__exit__(*exception)
        for hook in self._hooks:
            hook.remove()
        self._watch, self._hooks = None, []

    def __str__(self) -> str:
        if self._iteration < 0 and not self.origins:
            return (
                "no iteration was watched: run some inside of "
                "`with amp.trace_overflow(model) as trace:`"
            )
        lines = [str(origin) for origin in self.origins]
        scales = ", ".join(f"{scale:g}" for scale in self.loss_scales)
        if scales:
            lines.append(f"loss scales: {scales}")
        return "\n".join(lines if self.origins else ["no overflow", *lines])

    __repr__ = __str__

    def _begin(self, module: torch.nn.Module, args: object) -> None:
        self._first = None
        self._iteration += 1
        session = session_in_training(self._model)
        if session is not None:
            self.loss_scales.append(session.scalers[0].loss_scale())

    def _see(self, op: Op) -> None:
        if self._first is not None or not op.computes:
            return
        inputs = floating(op.inputs)
        bad = [t for t in floating(op.outputs) if not is_finite(t)]
        if not bad or op.writes_infinity or not all(map(is_finite, inputs)):
            return
        self._first = OverflowOrigin(
            max(self._iteration, 0),
            op.module,
            op.name,
            op.is_backward,
            bad[0].dtype,
            bool(bad[0].isnan().any()),
            max((float(t.detach().abs().max()) for t in inputs if t.numel()), default=0.0),
            self.loss_scales[-1] if self.loss_scales else None,
            is_reduced(op),
        )

    def _note(self, name: str, param: torch.Tensor) -> None:
        """After a backward has added to the grad of the parameter `name`."""
        if self._first is None or param.grad is None or is_finite(param.grad):
            return
        if not self._first.params:
            self.origins.append(self._first)
        if name not in self._first.params:
            self._first.params.append(name)


def trace_overflow(model: torch.nn.Module) -> OverflowTrace:
    """A context that finds where overflows of `model` come from, op by op. It waits for the device
    at each of them, so use it for the iterations in question alone::

        with amp.trace_overflow(model) as trace:
            ...                                        # iterations as usual
        print(trace)

    An iteration begins with each forward of the model. An op whose arguments ask for inf, as
    masked_fill(mask, -inf), does not count as an overflow. A float16 product that overflows is
    computed again in float32, on copies of its inputs.

    Args:
        model: the one that initialize returned, or a plain one.

    Raises:
        TypeError: for what is not a module.
    """
    return OverflowTrace(model)

"""amp.preflight: which level fits a model, by one iteration in float32 and one at each level."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from typing import Any

import torch

from torchamp._arguments import expect, module_of, takes
from torchamp._load import _C
from torchamp._logging import log
from torchamp._tables import text_table
from torchamp._tools.inspect.iteration import Iteration, LossFunction, Outcome
from torchamp._tools.inspect.linears import losing_linears
from torchamp._tools.inspect.ranges import (
    BFLOAT16,
    FLOAT16,
    FORMATS,
    MANY,
    SCALES,
    Format,
    Range,
    no_range,
    range_of,
    sum_of,
)
from torchamp._tools.inspect.rounding import written_buffers
from torchamp._tools.inspect.trial import (
    FLOAT8,
    OpKey,
    Reference,
    Verdict,
    levels_for,
    named,
    tf32,
    trial,
)
from torchamp._tools.inspect.watch import Op, check_batch

#: A level is faster than float32 from this share of its time down; the rest is noise.
_LESS = 0.9
#: Float8 pays from this share of O5's time down.
_PAYS = 0.95
#: From so many seconds of the float32 iteration on, progress is logged.
_SLOW = 2.0
_SIGMOID = (
    "The loss is the binary cross entropy of a sigmoid, which 16 bits round to 0 or 1: leave out "
    "the sigmoid and use binary_cross_entropy_with_logits (BCEWithLogitsLoss)."
)


@dataclasses.dataclass(frozen=True)
class TensorRange:
    """The magnitudes of the tensors of one op, or of one parameter, in float32."""

    kind: str  #: "weight", "activation", "activation grad" or "weight grad"
    module: str  #: the innermost one; "" is the model, "(loss)" the loss function
    name: str  #: of the op, or of the parameter in the module
    range: Range

    @property
    def is_grad(self) -> bool:
        """Whether the loss scale multiplies it."""
        return self.kind.endswith("grad")

    def __str__(self) -> str:
        if self.kind.startswith("activation"):
            return f"{self.kind} {self.name} of {named(self.module)}"
        return f"{self.kind} {'.'.join(filter(None, [self.module, self.name]))!r}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A tensor that a 16-bit format does not hold."""

    format: str  #: "float16" or "bfloat16"
    kind: str  #: "overflow" or "underflow"
    tensor: TensorRange
    text: str


@dataclasses.dataclass
class Preflight:
    """The result of amp.preflight; print it."""

    model: str  #: its class
    device: torch.device
    verdicts: list[Verdict]  #: of O1 to O5; before them of TF32, where the device has it
    findings: list[Finding]
    tensors: list[TensorRange]
    notes: list[str]  #: what to write otherwise, whatever the level, and what was left out
    #: The time of the fastest of some iterations in float32; None if the model takes one alone.
    milliseconds: float | None

    @property
    def recommended(self) -> str:
        """The first choice of the levels that fit and are faster than float32, or were not timed;
        "O0" if there is none."""
        most = _LESS * (self.milliseconds or math.inf)
        faster = (v.level for v in self._choices() if (v.milliseconds or 0.0) < most)
        return next(faster, "O0")

    def verdict(self, level: str) -> Verdict:
        """The verdict on one level.

        Raises:
            KeyError: for a level that was not tried.
        """
        return {each.level: each for each in self.verdicts}[level]

    def grads(self) -> Range:
        """The range of all grads of activations and weights together, before loss scaling."""
        return sum_of(each.range for each in self.tensors if each.is_grad)

    def share_lost(self, loss_scale: float) -> float:
        """The share of the grads that are not 0 that float16 rounds to 0 at this loss scale, a
        power of two."""
        return self.grads().share_lost(FLOAT16, _exponent(loss_scale))

    def __str__(self) -> str:
        title = f"preflight of {self.model} on {self.device}"
        header = ["level", "fits", "ms", "loss scale", "why"]
        table = text_table(header, [_cells(each) for each in self.verdicts])
        texts = (each.text for each in self.findings)
        summary = "\n".join([self._recommendation(), *texts, *self.notes])
        return f"{title}\n\n{table}\n\n{summary}"

    __repr__ = __str__

    def _recommendation(self) -> str:
        if not self._choices():
            return "No level fits that keeps float32 weights: take O0, which is float32."
        others = [v.level for v in self.verdicts if v.fits and v.level != self.recommended]
        fit = "fit" if len(others) > 1 else "fits"
        also = "" if self.recommended == "O0" else "also "
        rest = f" {', '.join(others)} {also}{fit}." if others else ""
        return f"{self._advice()}{rest}{self._times()}"

    def _advice(self) -> str:
        if self.recommended != "O0":
            return f"Recommended: {self.recommended}."
        noise = f"{100 - 100 * _LESS:.0f} %"
        return f"No level is faster here by more than {noise}: take O0, which is float32."

    def _times(self) -> str:
        """The times of the recommended level, or of the fastest, and of float32."""
        is_o0 = self.recommended == "O0"
        told = self._choices() if is_o0 else [self.verdict(self.recommended)]
        taken = [(v.milliseconds, v.level) for v in told if v.milliseconds]
        if not taken or self.milliseconds is None:
            return ""
        (least, level), plain = min(taken), self.milliseconds
        return f" An iteration takes {least:.3g} ms at {level}, in float32 {plain:.3g} ms."

    def _choices(self) -> list[Verdict]:
        """The levels that fit, the first choice first."""
        fitting = {v.level: v for v in self.verdicts if v.fits}
        return [fitting[level] for level in _preferred(self.device) if level in fitting]


def _exponent(scale: float) -> int:
    return math.frexp(scale)[1] - 1


def _cells(verdict: Verdict) -> list[str]:
    scale = "" if verdict.loss_scale is None else f"2**{_exponent(verdict.loss_scale)}"
    time = "" if verdict.milliseconds is None else f"{verdict.milliseconds:.3g}"
    return [verdict.level, "yes" if verdict.fits else "no", time, scale, verdict.reason]


def _preferred(device: torch.device) -> tuple[str, ...]:
    """From the first choice to the last: in bfloat16, which nothing overflows, except on GPUs that
    have float16 alone."""
    has_bfloat16 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
    return ("O4", "O1", "O5", "O2") if has_bfloat16 else ("O1", "O4", "O2", "O5")


def preflight(model: torch.nn.Module, batch: Any, loss_fn: LossFunction | None = None) -> Preflight:
    """Finds out which opt level fits a model: runs one forward and backward in float32 and looks at
    every activation, weight and grad, then one of a copy at each of O1 to O5. Needs memory for a
    copy of the model, and takes about thirty iterations' time or more.

    A level fits if its loss is within 2 % of float32's, what the model returns within 10 % of the
    norm and the grads of parameters within 50 %, no parameter loses all its grads, and buffers and
    inputs, rounded alone, leave what each module returns within 10 %. No op of the forward may
    overflow, round most of what it gives to 0, or clamp to a number that 16 bits round to 1, and no
    buffer that the forward writes may be rounded. Dropout draws the same masks at each level; on
    CUDA attention and recurrent layers run without it. One iteration does not show what later ones
    do. Where O5 fits and the model has linears for `float8=True`, a note says whether that fits and
    pays, and which linears are slower by themselves. An error of the float32 iteration is the
    call's own.

    Args:
        model: in float32, before initialize; it is not changed.
        batch: what the model is called with: a tensor, a tuple of positional arguments or a dict of
            keyword arguments.
        loss_fn: makes a loss of one element of what the model returns; None: the model returns the
            loss, or an object that has it as `.loss`.

    Raises:
        TypeError, ValueError: for other arguments.
        RuntimeError: for a model that cannot be copied, or that casts are open for.
    """
    model = module_of("preflight", model)
    _check(model)
    check_batch("preflight", model, batch)
    is_right = loss_fn is None or (callable(loss_fn) and takes(loss_fn, None))
    what = "a function of the model's output alone"
    remedy = "write lambda output: loss_fn(output, target)"
    expect(is_right, "preflight", "loss_fn", what, loss_fn, remedy)
    device = next(model.parameters()).device
    start = time.monotonic()
    reference, tensors, milliseconds = _in_float32(Iteration(model, batch, loss_fn))
    is_slow = time.monotonic() - start > _SLOW
    verdicts = []
    for level in levels_for(device):
        if is_slow:
            log(logging.INFO, f"preflight: trying {level}")
        verdicts.append(trial(level, reference))
    if milliseconds is not None:  # again: the machine may have had other work at first
        with tf32(False):
            again = reference.iteration.of_copy().time()
        milliseconds = min(milliseconds, again or milliseconds)
    of_float8 = _notes_on_float8(reference, verdicts[-1])
    findings = [found for format in FORMATS for found in _findings(tensors, format)]
    name = type(model).__name__
    notes = [*_notes(tensors), *_notes_on_buffers(reference)]
    notes += [*of_float8, *filter(None, [reference.outcome.note])]
    return Preflight(name, device, verdicts, findings, tensors, notes, milliseconds)


def _check(model: Any) -> None:
    if getattr(model, "_torchamp", None) is not None:
        raise ValueError(
            "preflight: expected a model before initialize, got one that it returned; call "
            "preflight first, or amp.release(model)"
        )
    for name, param in model.named_parameters():
        if param.is_floating_point() and param.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"preflight: expected float32 parameters, got {name!r} of {param.dtype}; call "
                "model.float() first"
            )
    params = list(model.parameters())
    if not any(param.requires_grad for param in params):
        raise ValueError("preflight: expected a model with a parameter that requires grad")
    device = params[0].device.type
    if _C.casting_to(device) is not None or torch.is_autocast_enabled(device):
        raise RuntimeError(
            "preflight: expected no casts in this thread, got those of a torch.autocast or of an "
            "initialize at O1 or O4; call it before them"
        )


class _Ranges:
    """The magnitudes of the tensors of an iteration in float32."""

    def __init__(self) -> None:
        self.ops: dict[OpKey, Range] = {}
        #: The first ops that gave nan, and the first that gave inf.
        self.nans: list[OpKey] = []
        self.infs: list[OpKey] = []

    def see(self, op: Op) -> None:
        if not op.computes:
            return
        key = op.is_backward, op.module, op.name
        found = sum_of(range_of(t) for t in op.outputs if t.is_floating_point())
        self.ops[key] = self.ops.get(key, no_range()) + found
        self.nans += [key] * bool(found.nans)
        self.infs += [key] * bool(found.infs)

    def tensors(self) -> list[TensorRange]:
        kinds = {False: "activation", True: "activation grad"}
        return [TensorRange(kinds[key[0]], *key[1:], found) for key, found in self.ops.items()]


def _in_float32(iteration: Iteration) -> tuple[Reference, list[TensorRange], float | None]:
    """Runs iterations, and times one. Raises what the iteration does."""
    seen, twin = _Ranges(), iteration.of_copy()
    with tf32(False):
        outcome = twin.run(seen.see)
        if outcome.error is not None:
            raise outcome.error
        _check_finite(outcome, seen)
        milliseconds = twin.time()
    tensors = seen.tensors()
    for name, param in twin.model.named_parameters():
        module, _, own = name.rpartition(".")
        tensors.append(TensorRange("weight", module, own, range_of(param)))
        if name in outcome.grads:
            found = range_of(outcome.grads[name])
            tensors.append(TensorRange("weight grad", module, own, found))
    return Reference(iteration, outcome, seen.ops), tensors, milliseconds


def _check_finite(outcome: Outcome, seen: _Ranges) -> None:
    if outcome.is_finite:
        return
    what = "grads that are not" if outcome.has_finite_loss else f"a loss of {outcome.loss}"
    first = [*seen.nans, *seen.infs][:1]
    where = "".join(f"; the first such op is {op} of {named(module)}" for _, module, op in first)
    raise ValueError(f"preflight: expected a finite iteration in float32, got {what}{where}")


def _notes(tensors: list[TensorRange]) -> list[str]:
    ops = [each.name for each in tensors if each.kind == "activation"]
    return [_SIGMOID] if ("sigmoid", "binary_cross_entropy") in zip(ops, ops[1:]) else []


def _notes_on_buffers(reference: Reference) -> list[str]:
    """On those that forward writes, and O2 and O5 round."""
    return [
        f"The forward writes buffer {name!r}, which O2, O3 and O5 round: what it adds up there "
        f"stops early. keep_fp32={kept!r} keeps it in float32."
        for name, kept in written_buffers(reference.iteration.model, reference.outcome.written)
    ]


def _notes_on_float8(reference: Reference, plain: Verdict) -> list[str]:
    """On linears in float8, where O5 fits, whose verdict is `plain`, and some are large enough."""
    if not plain.fits:
        return []
    try:
        found = trial(FLOAT8, reference)
    except ValueError:
        return []
    except RuntimeError as error:
        return [f"float8=True: {str(error).removeprefix('initialize: ')}"]
    text = f"float8=True at O5 {'fits' if found.fits else 'does not fit'}: {found.reason}."
    if found.milliseconds and plain.milliseconds:
        text += f" An iteration takes {found.milliseconds:.3g} ms, without it "
        text += f"{plain.milliseconds:.3g} ms: "
        pays = found.milliseconds <= _PAYS * plain.milliseconds
        text += "recommended." if pays else "it does not pay here."
        text += losing_linears(reference.iteration)
    return [text]


def _findings(tensors: list[TensorRange], format: Format) -> list[Finding]:
    """The tensors that `format` does not hold; grads at the loss scale that suits them best."""
    grads = sum_of(each.range for each in tensors if each.is_grad)
    is_scaled = format is FLOAT16
    fitting = [e for e in SCALES if not grads.overflows(format, e)] if is_scaled else [0]
    scale = max(fitting, default=SCALES[0])
    found = (_finding(each, format, scale if each.is_grad else 0) for each in tensors)
    return [each for each in found if each is not None]


def _finding(tensor: TensorRange, format: Format, scale: int) -> Finding | None:
    if not tensor.is_grad and tensor.range.overflows(BFLOAT16):
        return None  # a mask of float32's lowest number, for which each dtype has its own
    at = f" at a loss scale of 2**{scale}" if tensor.is_grad and format is FLOAT16 else ""
    if tensor.range.overflows(format, scale):
        reaches = f"{tensor} reaches {tensor.range.max_abs:.3g}"
        text = f"{reaches}: {format.name} ends at {format.largest:.5g}{at}"
        return Finding(format.name, "overflow", tensor, text)
    lost = tensor.range.share_lost(format, scale)
    if lost < MANY:
        return None
    text = f"{tensor}: {format.name} rounds {100 * lost:.0f} % of its nonzero elements to 0{at}"
    return Finding(format.name, "underflow", tensor, text)

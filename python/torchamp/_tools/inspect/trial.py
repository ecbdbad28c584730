"""Trials of the opt levels on copies of a model, against its iteration in float32."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchamp._load import _C
from torchamp._tools.inspect.iteration import LOSS, Iteration, Outcome
from torchamp._tools.inspect.ranges import (
    BFLOAT16,
    FLOAT16,
    MANY,
    SCALES,
    TF32,
    Format,
    Range,
    no_range,
    range_of,
    sum_of,
)
from torchamp._tools.inspect.reduction import REMEDY, is_reduced
from torchamp._tools.inspect.rounding import Rounding, written_buffers
from torchamp._tools.inspect.watch import Op, floating, is_finite
from torchamp.amp._amp import Amp
from torchamp.amp._run.settings import DESCRIPTIONS, settings_for

_PROPERTIES = {level: settings_for(level).properties for level in DESCRIPTIONS if level != "O0"}

#: O5 with linears in float8.
FLOAT8 = "O5, float8"

#: The format of each level, of TF32 and of FLOAT8.
FORMATS = {
    level: BFLOAT16 if torch.bfloat16 in (chosen.cast_model_type, chosen.autocast_type) else FLOAT16
    for level, chosen in _PROPERTIES.items()
} | {"TF32": TF32, FLOAT8: BFLOAT16}

LEVELS = tuple(_PROPERTIES)

#: The largest relative differences from float32 of a level that fits.
MAX_LOSS_ERROR = 0.02
MAX_OUTPUT_ERROR = 0.1
MAX_GRAD_ERROR = 0.5

#: An op of the iteration: whether it is of the backward, its module and its name.
OpKey = tuple[bool, str, str]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on one level, by one iteration of the model."""

    level: str  #: "O1" to "O5"; "TF32" is O0 with TF32 in matrix products and convolutions
    fits: bool
    reason: str
    #: Relative to float32; None where the iteration did not end with finite numbers.
    loss_error: float | None = None
    output_error: float | None = None  #: of the norms of what the model returns
    grad_error: float | None = None  #: of the norms of all grads of parameters together
    loss_scale: float | None = None  #: at which no grad overflows; None without loss scaling
    module: str = ""  #: where it fails first; "(loss)" is the loss function
    op: str = ""
    #: The time of the fastest of some iterations; None where the level does not fit.
    milliseconds: float | None = None


@dataclasses.dataclass
class Reference:
    """The iteration in float32."""

    iteration: Iteration
    outcome: Outcome
    ops: Mapping[OpKey, Range]

    @property
    def largest_scale(self) -> int:
        """The exponent of the first loss scale to try in float16: amp's first, or a smaller one."""
        amps = int(math.log2(_C.LossScaler().loss_scale()))
        tops = [r.max_abs for (is_backward, *_), r in self.ops.items() if is_backward and r.max_abs]
        room = FLOAT16.top - int(torch.tensor(max(tops, default=1.0)).log2().floor())
        return max(min(amps, room), SCALES[0])


#: Why a level does not fit, the module and the op; empty if it fits.
Failure = tuple[str, str, str]
_NONE: Failure = ("", "", "")


class _Ops:
    """The faults of ops of an iteration at a level that they do not have in float32."""

    def __init__(self, format: Format, reference: Reference) -> None:
        self._format, self._reference = format, reference
        #: The first whose outputs are not finite where those in float32 are, and the first of the
        #: forward that makes such outputs of finite inputs.
        self.bad: Op | None = None
        self.overflow: Op | None = None
        self._clamps: list[Failure] = []
        #: The rest of outputs of the forward of which the format loses many elements.
        self._left: dict[OpKey, Range] = {}

    def see(self, op: Op) -> None:
        if not op.computes:
            return
        known = self._reference.ops.get(_key(op), no_range())
        if not (known.infs or known.nans) and not all(map(is_finite, floating(op.outputs))):
            self.bad = self.bad or op
            if not op.is_backward and _overflows(op):
                self.overflow = self.overflow or op
        if op.is_backward:
            return
        if op.name.startswith("clamp"):
            self._clamps += _clamped_away(op)
        if known.share_lost(self._format) >= MANY:
            left = sum_of(map(range_of, floating(op.outputs)))
            self._left[_key(op)] = self._left.get(_key(op), no_range()) + left

    def failure(self) -> Failure:
        """The first failure of a forward in which all is finite."""
        return next(itertools.chain(self._clamps, self._vanished()), _NONE)

    def _vanished(self) -> Iterator[Failure]:
        for key, left in self._left.items():
            known, (_, module, op) = self._reference.ops[key], key
            lost = 1 - left.nonzero / known.nonzero
            if lost >= MANY and left.norm < math.sqrt(1 - MAX_OUTPUT_ERROR**2) * known.norm:
                what = f"{self._format.name} rounds {100 * lost:.0f} % of its nonzero elements to 0"
                yield f"underflow: {op} of {named(module)}: {what}", module, op


def _key(op: Op) -> OpKey:
    return op.is_backward, op.module, op.name


def _overflows(op: Op) -> bool:
    """Whether it has made inf or nan of finite numbers, none of which is the lowest of its dtype:
    what is added to such a mask may become inf."""
    read = [t for t in floating(op.inputs) if all(t is not output for output in op.outputs)]
    is_mask = any(bool((t == torch.finfo(t.dtype).min).any()) for t in read)
    return not op.writes_infinity and not is_mask and all(map(is_finite, read))


def _clamped_away(op: Op) -> Iterator[Failure]:
    """The failures of an op that clamps to numbers, not 1, that its output's dtype rounds to 1."""
    dtype = op.outputs[0].dtype
    for number in op.numbers:
        exact, rounded = (float(torch.tensor(number).to(d)) for d in (torch.float32, dtype))
        if abs(rounded) == 1.0 != abs(exact):
            format, to = str(dtype).removeprefix("torch."), f"{number:g}"
            what = f"{op.name} of {named(op.module)} to {to}, which {format} rounds to {rounded:g}"
            yield f"precision: {what}; write x.float() there", op.module, op.name


def trial(level: str, reference: Reference) -> Verdict:
    """The verdict on `level`, of one iteration of a copy, or of some with ever smaller scales.
    Raises what initialize does."""
    is_scaled = FORMATS[level] is FLOAT16
    exponent = reference.largest_scale if is_scaled else 0
    twin = reference.iteration.of_copy()
    with _initialized(twin.model, level):
        while True:
            ops = _Ops(FORMATS[level], reference)
            outcome = twin.run(ops.see, 2.0**exponent)
            retries = is_scaled and outcome.error is None and outcome.has_finite_loss
            if outcome.is_finite or not retries or exponent <= SCALES[0]:
                break
            exponent = max(exponent - 2, SCALES[0])
        scale = 2.0**exponent if is_scaled else None
        verdict = _judged(level, outcome, ops, scale, reference)
        if verdict.fits:
            verdict = dataclasses.replace(verdict, milliseconds=twin.time(2.0**exponent))
    chosen = _PROPERTIES.get(level)
    if not verdict.fits or chosen is None or chosen.cast_model_type is None:
        return verdict
    keeps_norms = bool(chosen.keep_batchnorm_fp32)
    rounding = Rounding(reference.iteration, chosen.cast_model_type, keeps_norms)
    with tf32(False):
        for what, remedy, module in _rounded(rounding, reference):
            reason = f"precision: {what}; {remedy} avoids it"
            return dataclasses.replace(
                verdict, fits=False, reason=reason, module=module, milliseconds=None
            )
    return verdict


def _rounded(rounding: Rounding, reference: Reference) -> Iterator[tuple[str, str, str]]:
    """The buffers and inputs that the level must not round, the remedy and the module."""
    if _first_imprecise(rounding.of_all(), reference.outcome) is not None:
        for what, remedy, outcome in rounding.of_each():
            module = _first_imprecise(outcome, reference.outcome)
            if module is not None:
                off = f"outputs of {named(module)} are off float32"
                yield f"{what} in 16 bits: {off}", remedy, module
    for name, kept in written_buffers(reference.iteration.model, reference.outcome.written):
        stops = f"buffer {name!r} in 16 bits: what the forward adds up there stops early"
        yield stops, f"keep_fp32={kept!r}", name.rpartition(".")[0]


def _initialized(model: torch.nn.Module, level: Any) -> contextlib.AbstractContextManager[object]:
    if level == FLOAT8:
        return Amp(model, None, "O5", verbosity=0, float8=True)
    if level in LEVELS:
        return Amp(model, None, level, verbosity=0)
    return tf32(level == "TF32")


def levels_for(device: torch.device) -> tuple[str, ...]:
    """The levels to try."""
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return ("TF32", *LEVELS) if has_tf32 else LEVELS


@contextlib.contextmanager
def tf32(is_allowed: bool) -> Iterator[None]:
    """A context in which float32 matrix products and convolutions on CUDA may use TF32, or not."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if is_allowed else "highest")
    torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def _judged(
    level: str, outcome: Outcome, ops: _Ops, scale: float | None, reference: Reference
) -> Verdict:
    if outcome.error is not None:
        op, module = outcome.raised or ("", "")
        where = f"{op} of {named(module)} raises" if op else "the iteration raises"
        return Verdict(level, False, f"{where}: {_first_line(outcome.error)}", module=module, op=op)
    if not outcome.is_finite or ops.overflow is not None:
        bad = ops.bad if not outcome.is_finite else ops.overflow
        return _overflow(level, outcome, bad, reference)
    errors = _errors(outcome, reference.outcome)
    failure = _imprecision(level, outcome, errors, reference.outcome)
    reason, module, op = ops.failure() if failure == _NONE else failure
    text = reason or _closeness(level, errors)
    return Verdict(level, not reason, text, *errors, scale, module, op)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def named(module: str) -> str:
    """As messages name a module."""
    if module == LOSS:
        return "the loss function"
    return repr(module) if module else "the model"


def _overflow(level: str, outcome: Outcome, bad: Op | None, reference: Reference) -> Verdict:
    backward = outcome.has_finite_loss if bad is None else bad.is_backward
    when = "in the backward" if backward else "in the forward"
    if backward and FORMATS[level] is FLOAT16:
        when += f", at every loss scale down to 2**{SCALES[0]}"
    if bad is None:
        return Verdict(level, False, f"not finite {when}")
    known = reference.ops.get((bad.is_backward, bad.module, bad.name))
    tops = [float(t.detach().float().abs().max()) for t in bad.inputs if t.is_floating_point()]
    top = known.max_abs if known else max((t for t in tops if t < float("inf")), default=0.0)
    largest = FORMATS[level].largest
    reaches = f" reaches {top:.3g} in float32, and {FORMATS[level].name} ends at {largest:.5g}"
    has_nan = any(bool(t.isnan().any()) for t in floating(bad.outputs))
    what = reaches if top > largest else f" gives {'nan' if has_nan else 'inf'}"
    op = "a cast" if bad.name == "_to_copy" else bad.name
    remedy = REMEDY * is_reduced(bad)
    reason = f"{op} of {named(bad.module)}{what}: not finite {when}{remedy}"
    return Verdict(level, False, reason, module=bad.module, op=bad.name)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The error relative to the norm; where all are zeros 0 or inf."""
    both = found.isfinite() & expected.isfinite()
    difference = float((found - expected)[both].norm())
    return difference / (float(expected[both].norm()) or 1e-300) if difference else 0.0


def _errors(outcome: Outcome, reference: Outcome) -> tuple[float, float, float]:
    """The errors of loss, outputs of the model and grads."""
    loss = abs(outcome.loss - reference.loss) / max(abs(reference.loss), 1e-6)
    outputs = relative_error(_of_model(outcome), _of_model(reference))
    grads = relative_error(_flat(outcome.grads, reference.grads), _flat(reference.grads))
    return loss, outputs, grads


def _of_model(outcome: Outcome) -> torch.Tensor:
    samples = [sample for name, sample in outcome.outputs if name == ""]
    return samples[-1] if samples else torch.zeros(0)


def _flat(grads: dict[str, torch.Tensor], names: Any = None) -> torch.Tensor:
    return torch.cat([grads[name].flatten() for name in names or grads] or [torch.zeros(0)])


def _imprecision(
    level: str, outcome: Outcome, errors: tuple[float, float, float], reference: Outcome
) -> Failure:
    loss, outputs, grads = errors
    if loss > MAX_LOSS_ERROR or outputs > MAX_OUTPUT_ERROR:
        module = _first_imprecise(outcome, reference)
        first = f", first those of {named(module)}" if module else ""
        far = f"outputs are {outputs:.2g} of their norm off float32{first}; the loss {loss:.2g}"
        return f"precision: {far}", module or "", ""
    grads_of = reference.grads.items()
    lost = [name for name, grad in grads_of if grad.any() and not outcome.grads[name].any()]
    if lost:
        others = f", and {len(lost) - 1} others" if len(lost) > 1 else ""
        reason = f"underflow: all grads of {lost[0]!r} are rounded to 0{others}"
        return reason, lost[0].rpartition(".")[0], ""
    if grads > MAX_GRAD_ERROR:
        return f"precision: grads are {grads:.2g} of their norm off float32", "", ""
    return _NONE


def _first_imprecise(outcome: Outcome, reference: Outcome) -> str | None:
    for (name, found), (_, expected) in zip(outcome.outputs, reference.outputs):
        same = found.shape == expected.shape
        if same and relative_error(found, expected) > MAX_OUTPUT_ERROR:
            return name
    return None


def _closeness(level: str, errors: tuple[float, float, float]) -> str:
    close = "relative error: loss {:.1g}, outputs {:.1g}, grads {:.1g}".format(*errors)
    return f"{close}; without masters small updates are lost" if level == "O3" else close

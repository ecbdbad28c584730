"""amp.preflight: planted faults are named, and a healthy network is clean."""

from __future__ import annotations

import dataclasses
import re
import time
import types
from functools import partial

import pytest
import torch
from nets import Net, Planted, batch
from torch import nn
from torch.nn import functional as F

import torchamp
from torchamp import _C, amp
from torchamp._tools.inspect import preflight
from torchamp._tools.inspect.iteration import Iteration
from torchamp._tools.inspect.linears import losing_linears
from torchamp._tools.inspect.ranges import BFLOAT16, FLOAT16, range_of
from torchamp._tools.inspect.trial import levels_for

FLOAT16_LEVELS = ("O1", "O2", "O3")
BFLOAT16_LEVELS = ("O4", "O5")


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


class WithLoss(Planted):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).pow(2).mean()


def report_of(planted, device: torch.device) -> amp.Preflight:
    return amp.preflight(WithLoss(planted, 6).to(device), inputs(device))


def softmax_with_masks_of(value: float, x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1)
    return (x @ x.transpose(-1, -2)).masked_fill(mask, value).softmax(-1) @ x


def softmax_of_the_lowest_number(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(5, 5, dtype=x.dtype, device=x.device).triu(1) * torch.finfo(x.dtype).min
    return (x @ x.transpose(-1, -2) - 100 + mask).softmax(-1) @ x


def cholesky(x: torch.Tensor) -> torch.Tensor:
    eye = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    return torch.linalg.cholesky(x @ x.transpose(-1, -2) + eye) @ x


def inputs(device: torch.device) -> torch.Tensor:
    return torch.randn(4, 5, 6, device=device)


def first_choice(device: torch.device) -> str:
    has_float16_alone = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    return "O1" if has_float16_alone else "O4"


def fitting(report: amp.Preflight) -> list[str]:
    return [verdict.level for verdict in report.verdicts if verdict.fits]


def test_a_healthy_network_is_clean(device: torch.device):
    model = convolutions().to(device)
    target = torch.tensor([0, 1, 2, 3], device=device)
    x = torch.randn(4, 3, 8, 8, device=device)
    report = amp.preflight(model, x, lambda outputs: F.cross_entropy(outputs, target))
    assert {*FLOAT16_LEVELS, *BFLOAT16_LEVELS} <= set(fitting(report))
    assert report.findings == []
    for verdict in report.verdicts:
        bound = 0.05 if verdict.level in BFLOAT16_LEVELS else 0.01
        assert max(verdict.loss_error, verdict.output_error, verdict.grad_error) < bound
        assert (verdict.loss_scale is None) == (verdict.level not in FLOAT16_LEVELS)


def test_a_healthy_transformer_is_clean(device: torch.device):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2)).to(device)
    tokens = torch.randint(0, 16, (3, 7), device=device)
    loss_fn = lambda y: F.cross_entropy(y.flatten(0, 1), tokens.flatten())  # noqa: E731
    report = amp.preflight(model, tokens, loss_fn)
    assert report.findings == [] and {*FLOAT16_LEVELS, *BFLOAT16_LEVELS} <= set(fitting(report))
    notes = "\n".join(report.notes)
    assert ("dropout of scaled_dot_product_attention" in notes) == (device.type == "cuda")


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_a_dropout_whose_mask_depends_on_the_dtype(device: torch.device):
    """As that of CUDA does; the CPU gets one."""

    def dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.rand(x.shape) >= p
        if x.itemsize == 2:
            mask = ~mask
        return x * mask / (1 - p), mask

    library = torch.library.Library("aten", "IMPL")
    library.impl("native_dropout", dropout, "CPU")
    try:
        report = report_of(lambda x: torch.native_dropout(x, 0.5, True)[0], device)
    finally:
        library._destroy()
    assert {*FLOAT16_LEVELS, *BFLOAT16_LEVELS} <= set(fitting(report)) and report.notes == []


def test_an_overflow_of_an_activation(device: torch.device):
    report = report_of(lambda x: x * 1e6 / 1e6, device)
    for level in FLOAT16_LEVELS:
        verdict = report.verdict(level)
        assert not verdict.fits and "in the forward" in verdict.reason
        assert "reaches" in verdict.reason and "float16 ends at 65504" in verdict.reason
        assert (verdict.module, verdict.op) == ("middle", "mul")
    assert set(BFLOAT16_LEVELS) <= set(fitting(report))
    (finding,) = report.findings
    assert (finding.format, finding.kind) == ("float16", "overflow")
    assert (finding.tensor.module, finding.tensor.name) == ("middle", "mul")
    assert finding.tensor.range.max_abs > 65504


def test_a_weight_beyond_float16(device: torch.device):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).to(device)
    nn.init.constant_(model[1].weight, 1e6)
    report = amp.preflight(model, inputs(device), lambda y: (y * 1e-6).pow(2).mean())
    assert fitting(report) == [*BFLOAT16_LEVELS] or device.type == "cuda"
    assert "weight '1.weight' reaches 1e+06: float16 ends at 65504" in str(report)
    assert report.verdict("O1").module == "1"


def test_grads_that_vanish(device: torch.device):
    report = report_of(lambda x: x * 1e-12, device)
    for level in FLOAT16_LEVELS:
        assert not report.verdict(level).fits
        assert "underflow: all grads of 'before.weight'" in report.verdict(level).reason
    assert set(BFLOAT16_LEVELS) <= set(fitting(report))
    named = {(f.tensor.kind, f.tensor.module, f.tensor.name) for f in report.findings}
    assert ("weight grad", "before", "weight") in named
    assert ("activation", "middle", "mul") in named
    text = "activation mul of 'middle': float16 rounds 100 % of its nonzero elements to 0"
    assert text in {finding.text for finding in report.findings}
    assert {finding.format for finding in report.findings} == {"float16"}


def test_grads_that_loss_scaling_saves(device: torch.device):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).to(device)
    report = amp.preflight(model, inputs(device), lambda y: y.float().pow(2).mean() * 2.0**-18)
    assert report.share_lost(1.0) > 0.1 > 0.02 > report.share_lost(2.0**16)
    assert set(FLOAT16_LEVELS) <= set(fitting(report))


def test_grads_that_overflow_at_every_scale(device: torch.device):
    def steep(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.register_hook(lambda grad: grad * 1e12)
        return x

    report = report_of(steep, device)
    verdict = report.verdict("O2")
    assert not verdict.fits and verdict.module == "middle"
    assert "in the backward, at every loss scale down to 2**-10" in verdict.reason
    assert any(finding.tensor.kind == "weight grad" for finding in report.findings)


def test_a_square_that_overflows_on_the_way(device: torch.device):
    """The result is finite, and close to float32."""
    report = report_of(lambda x: x / (1 + (400 * x).square()), device)
    for level in ("O2", "O3"):
        assert report.verdict(level).reason.startswith("pow of 'middle' reaches ")
        assert report.verdict(level).reason.endswith(
            " in float32, and float16 ends at 65504: not finite in the forward"
        )
    assert [finding.tensor.name for finding in report.findings] == ["pow", "add"]
    assert fitting(report) == [v.level for v in report.verdicts if v.level not in ("O2", "O3")]


def test_a_square_that_vanishes_on_the_way(device: torch.device):
    report = report_of(lambda x: x / (1 + (1e-5 * x).square()), device)
    for level in ("O2", "O3"):
        assert report.verdict(level).reason == (
            "underflow: pow of 'middle': float16 rounds 100 % of its nonzero elements to 0"
        )
    assert report.verdict("O1").fits  # where it runs in float32
    assert set(BFLOAT16_LEVELS) <= set(fitting(report))


def test_small_probabilities_are_meant_to_vanish(device: torch.device):
    bias = 30 * torch.arange(6.0, device=device)
    report = report_of(lambda x: x * (x + bias.to(x.dtype)).softmax(-1), device)
    assert {finding.tensor.name for finding in report.findings} >= {"_softmax"}
    assert {*FLOAT16_LEVELS, *BFLOAT16_LEVELS} <= set(fitting(report))


@pytest.mark.parametrize("most, formats", [(1 - 1e-4, "float16 bfloat16"), (0.999, "bfloat16")])
def test_a_clamp_that_16_bits_round_away(most, formats, device: torch.device):
    """As that of focal losses, before the logarithm of 1 - p."""

    def focal(x: torch.Tensor) -> torch.Tensor:
        p = x.sigmoid().clamp(1 - most, most)
        return -(p.square() * (1 - p).log())

    report = report_of(focal, device)
    for verdict in report.verdicts:
        format = {"O4": "bfloat16", "O5": "bfloat16", "TF32": "TF32"}.get(verdict.level, "float16")
        assert verdict.fits == (format not in formats.split())
        if not verdict.fits:
            assert (verdict.module, verdict.op) == ("middle", "clamp")
            assert verdict.reason == (
                f"precision: clamp of 'middle' to {most:g}, which {format} rounds to 1; write "
                "x.float() there"
            )


def test_masks_of_minus_a_billion(device: torch.device):
    report = report_of(partial(softmax_with_masks_of, -1e9), device)
    for level in FLOAT16_LEVELS:
        assert not report.verdict(level).fits
        assert (report.verdict(level).module, report.verdict(level).op) == ("middle", "masked_fill")
    assert set(BFLOAT16_LEVELS) <= set(fitting(report))
    assert [finding.tensor.name for finding in report.findings] == ["masked_fill"]


@pytest.mark.parametrize(
    "softmax", [partial(softmax_with_masks_of, -torch.inf), softmax_of_the_lowest_number]
)
def test_masks_of_minus_infinity_and_of_the_lowest_number_are_meant(softmax, device: torch.device):
    report = report_of(softmax, device)
    assert report.findings == [] and {*FLOAT16_LEVELS, *BFLOAT16_LEVELS} <= set(fitting(report))


def test_linear_algebra(device: torch.device):
    report = report_of(cholesky, device)
    for level in ("O2", "O3", "O5"):
        verdict = report.verdict(level)
        assert not verdict.fits and "not implemented for" in verdict.reason
        assert (verdict.module, verdict.op) == ("middle", "linalg_cholesky_ex")


def test_precision_that_bfloat16_lacks(device: torch.device):
    report = report_of(lambda x: (x + 2000) - 2000, device)
    verdict = report.verdict("O5")
    assert not verdict.fits and verdict.module == "middle"
    assert (
        "precision: outputs are" in verdict.reason and "first those of 'middle'" in verdict.reason
    )


class Rotary(nn.Module):
    """Cosines of large angles, of which 16 bits hold no fraction."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, 16, 2) / 16))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.outer(positions.type_as(self.frequencies), self.frequencies).cos()


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rope, self.last = Rotary(), nn.Linear(8, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.count += len(x)
        return self.last(x + 1e-3 * self.rope(positions).to(x.dtype)).float().square().mean()


class Codebook(nn.Module):
    """Averages of what is nearest to its entries, as of a VQ-VAE."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("entries", torch.randn(3, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nearest = torch.cdist(x.float().flatten(0, -2), self.entries.float()).argmin(-1)
        ones = F.one_hot(nearest, 3).to(x.dtype)
        means = ones.T @ x.detach().flatten(0, -2) / ones.sum(0).clamp(min=1)[:, None]
        self.entries.lerp_(means.to(self.entries.dtype), 0.01)
        return x + self.entries.to(x.dtype)[nearest].view_as(x)


@pytest.mark.parametrize("place", ["codebook", "root"])
def test_buffers_that_a_forward_writes_must_not_be_rounded(place, device: torch.device):
    class Net(nn.Sequential):
        def forward(self, x):
            if place == "root":
                self.count += 1
            return super().forward(x).float().square().mean()

    middle = Codebook() if place == "codebook" else nn.Tanh()
    model = Net(nn.Linear(6, 6), middle, nn.Linear(6, 6)).to(device)
    if place == "root":
        model.register_buffer("count", torch.zeros((), device=device))
    found = amp.preflight(model, inputs(device))
    name, kept = ("1.entries", "1") if place == "codebook" else ("count", "count")
    for level in ("O2", "O3", "O5"):
        assert found.verdict(level).reason == (
            f"precision: buffer {name!r} in 16 bits: what the forward adds up there stops early; "
            f"keep_fp32={kept!r} avoids it"
        )
        assert not found.verdict(level).fits and found.verdict(level).milliseconds is None
    assert found.verdict("O1").fits and found.verdict("O4").fits
    assert found.notes == [
        f"The forward writes buffer {name!r}, which O2, O3 and O5 round: what it adds up there "
        f"stops early. keep_fp32={kept!r} keeps it in float32."
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O5", keep_fp32=kept, verbosity=0)
    amp.scale_loss(model(inputs(device)), optimizer).backward()
    assert all(buffer.dtype == torch.float32 for buffer in model.buffers())


def test_buffers_that_must_not_be_rounded(device: torch.device):
    model, x = Rotated().to(device), torch.randn(2048, 8, device=device)
    found = amp.preflight(model, (x, torch.arange(0, 16384, 8, device=device)))
    verdict = found.verdict("O5")
    assert not verdict.fits and verdict.module == "rope"
    assert verdict.reason == (
        "precision: buffer 'rope.frequencies' in 16 bits: outputs of 'rope' are off float32; "
        "keep_fp32='rope.frequencies' avoids it"
    )
    assert found.notes == [
        "The forward writes buffer 'count', which O2, O3 and O5 round: what it adds up there stops "
        "early. keep_fp32='count' keeps it in float32."
    ]
    assert found.verdict("O4").fits and model.count == 0


def test_inputs_that_must_not_be_rounded(device: torch.device):
    class Times(Rotary):
        def forward(self, positions):
            return torch.outer(positions.float(), self.frequencies.float()).cos()

    model = Rotated()
    model.count = torch.zeros((), dtype=torch.long)  # which is not rounded
    model.rope = Times()
    model.rope.frequencies.fill_(1.0)
    batch = {"x": torch.randn(2048, 8), "positions": torch.arange(2048.0)}
    found = amp.preflight(model.to(device), {name: t.to(device) for name, t in batch.items()})
    assert found.verdict("O5").reason == (
        "precision: the inputs in 16 bits: outputs of 'rope' are off float32; "
        "keep_fp32 with the names of forward's arguments avoids it"
    )
    assert found.notes == []


def test_the_loss_function(device: torch.device):
    model = nn.Linear(6, 6).to(device)
    report = amp.preflight(model, inputs(device), lambda y: (y * 1e6).pow(2).mean() * 1e-12)
    assert "the loss function" in report.verdict("O3").reason or "O3" in fitting(report)
    assert any(finding.tensor.module == "(loss)" for finding in report.findings)


@pytest.mark.parametrize("make", [Net, lambda: wide(1024)], ids=["small", "float8"])
def test_nothing_changes(make, device: torch.device):
    model = make().to(device)
    kind, x = type(model), batch(0, device)[0]
    model(x).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [param.grad.clone() for param in model.parameters()]
    state = torch.get_rng_state(), torch.get_float32_matmul_precision()
    amp.preflight(model, x, lambda y: y.pow(2).mean())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(param.grad, grad) for param, grad in zip(model.parameters(), grads))
    assert torch.equal(torch.get_rng_state(), state[0])
    assert torch.get_float32_matmul_precision() == state[1]
    assert type(model) is kind and not torch.is_autocast_enabled(device.type)


def test_losses_that_models_return(device: torch.device):
    class Returns(nn.Linear):
        def forward(self, x, scale=1.0):
            return types.SimpleNamespace(loss=super().forward(x).pow(2).mean() * scale)

    model = Returns(6, 6).to(device)
    assert amp.preflight(model, (inputs(device),)).verdict("O1").fits
    assert amp.preflight(model, {"x": inputs(device), "scale": 2.0}).verdict("O1").fits


@pytest.mark.parametrize(
    ("capability", "preferred"),
    [((7, 5), ("O1", "O4", "O2", "O5")), ((8, 0), ("O4", "O1", "O5", "O2"))],
)
def test_gpus_without_bfloat16_prefer_float16(capability, preferred, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert preflight._preferred(torch.device("cuda")) == preferred
    assert preflight._preferred(torch.device("cpu")) == ("O4", "O1", "O5", "O2")


def test_iterations_are_timed(device: torch.device):
    class Slow(nn.Linear):
        def forward(self, x):
            if self.weight.dtype == torch.bfloat16:
                time.sleep(0.02)
            return super().forward(x)

    report = amp.preflight(Slow(6, 6).to(device), inputs(device), lambda y: y.pow(2).mean())
    assert 20 <= report.verdict("O5").milliseconds < 20_000
    assert 0 < report.milliseconds < report.verdict("O5").milliseconds


#: The milliseconds of an iteration in float32, at O1, O4 and O5, and the advice.
ADVICE = {
    "faster": (
        (9.0, 12.0, 4.25, 3.0),
        "Recommended: O4. O1, O5 also fit. An iteration takes 4.25 ms at O4, in float32 9 ms.",
    ),
    "another is faster": (
        (4.25, 12.0, 9.0, 3.0),
        "Recommended: O5. O1, O4 also fit. An iteration takes 3 ms at O5, in float32 4.25 ms.",
    ),
    "within the noise": (
        (3.0, 12.0, 2.8, 2.75),
        "No level is faster here by more than 10 %: take O0, which is float32. O1, O4, O5 fit. "
        "An iteration takes 2.75 ms at O5, in float32 3 ms.",
    ),
    "not timed": ((None, None, None, None), "Recommended: O4. O1, O5 also fit."),
    "float32 is not timed": ((None, 12.0, 9.0, 3.0), "Recommended: O4. O1, O5 also fit."),
}


def advice_of(times, levels=("O1", "O4", "O5")) -> preflight.Preflight:
    verdicts = [
        preflight.Verdict(level, True, "", milliseconds=taken)
        for level, taken in zip(levels, times[1:])
    ]
    verdicts.append(preflight.Verdict("O3", False, ""))
    return preflight.Preflight("Net", torch.device("cpu"), verdicts, [], [], [], times[0])


@pytest.mark.parametrize(("times", "advice"), ADVICE.values(), ids=ADVICE)
def test_a_level_has_to_be_faster_than_float32(times, advice):
    found = advice_of(times)
    assert str(found).partition("\n\n")[2].partition("\n\n")[2] == advice
    named = advice.removeprefix("Recommended: ")[:2]
    assert found.recommended == ("O0" if named == "No" else named)


def test_float32_is_timed_before_and_after_the_levels(monkeypatch, device: torch.device):
    """A machine that had other work meanwhile makes no level fast."""
    times = iter([9.0, *[5.0] * len(levels_for(device)), 4.0])
    monkeypatch.setattr(Iteration, "time", lambda *given: next(times))
    found = amp.preflight(nn.Linear(6, 6).to(device), inputs(device), lambda y: y.pow(2).mean())
    assert (found.milliseconds, found.verdict("O4").milliseconds) == (4.0, 5.0)
    assert found.recommended == "O0"


def test_where_no_level_fits():
    found = advice_of((3.0,), levels=())
    assert found.recommended == "O0"
    assert str(found).splitlines()[-1] == (
        "No level fits that keeps float32 weights: take O0, which is float32."
    )


def test_models_that_take_one_iteration_alone_are_not_timed(device: torch.device):
    class Remembers(nn.Linear):
        state = 0.0

        def forward(self, x):
            self.state = super().forward(x) + self.state
            return self.state.pow(2).mean()

    report = amp.preflight(Remembers(6, 6).to(device), inputs(device))
    assert report.recommended == first_choice(device)
    assert report.milliseconds is None and str(report).splitlines()[-1].endswith(" also fit.")


def test_long_ones_log_their_progress(heard, monkeypatch, device: torch.device):
    model, x = nn.Linear(6, 6).to(device), inputs(device)
    amp.preflight(model, x, lambda y: y.pow(2).mean())
    assert heard.take() == ""
    monkeypatch.setattr("torchamp._tools.inspect.preflight._SLOW", 0.0)
    amp.preflight(model, x, lambda y: y.pow(2).mean())
    assert "INFO: preflight: trying O1\nINFO: preflight: trying O2\n" in heard.take()


def test_a_model_that_is_not_finite_in_float32(device: torch.device):
    with pytest.raises(
        ValueError, match="finite iteration in float32, got a loss of nan; .* mul of 'middle'"
    ):
        report_of(lambda x: -x.abs().log() * torch.nan, device)


def test_wrong_arguments():
    model, x = nn.Linear(6, 6), inputs(torch.device("cpu"))
    with pytest.raises(TypeError, match="preflight: expected model to be a torch.nn.Module, got a"):
        amp.preflight(x, x)
    with pytest.raises(ValueError, match="float32 parameters, got 'weight' of torch.float16"):
        amp.preflight(nn.Linear(6, 6).half(), x)
    with pytest.raises(ValueError, match="a parameter that requires grad"):
        amp.preflight(nn.Linear(6, 6).requires_grad_(False), x)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="no casts"):
        amp.preflight(model, x, lambda y: y.sum())
    ready = amp.initialize(nn.Linear(6, 6), opt_level="O2", verbosity=0)
    with pytest.raises(ValueError, match="before initialize"):
        amp.preflight(ready, x, lambda y: y.sum())
    with pytest.raises(RuntimeError, match="mat1 and mat2"):  # torch's own
        amp.preflight(model, torch.randn(2, 3), lambda y: y.sum())


@pytest.mark.parametrize("format", [FLOAT16, BFLOAT16], ids=lambda format: format.name)
def test_shares_are_those_of_a_cast(format):
    """Numbers of all exponents, some of which the format makes 0 or inf."""
    dtype = getattr(torch, format.name)
    exponents = torch.arange(-149.0, 128.0)
    values = torch.cat([torch.exp2(exponents), 1.75 * torch.exp2(exponents[30:])])
    values = values[values != 2.0 ** (format.subnormal - 1)]  # a tie, which goes to 0
    found = range_of(values)
    cast = values.to(dtype)
    assert found.share_lost(format) == pytest.approx(float((cast == 0).double().mean()))
    assert range_of(torch.tensor([format.largest])).overflows(format) is False
    assert range_of(torch.tensor([format.largest]) * 1.003).overflows(format) is True
    assert torch.tensor(format.largest).to(dtype).item() == torch.finfo(dtype).max


def test_ranges_of_special_numbers():
    found = range_of(
        torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.0, -0.25, 2**-149])
    )
    assert (found.zeros, found.infs, found.nans, found.nonzero) == (2, 2, 1, 3)
    assert found.exponents == {1: 1, -2: 1, -149: 1} and found.max_abs == 3.0


@pytest.mark.parametrize(
    ("loss_fn", "error", "got"),
    [
        (
            None,
            ValueError,
            "one of sizes [16, 3] with one; pass loss_fn, which makes the loss of "
            "what the model returns",
        ),
        (lambda y: y, ValueError, "one of sizes [16, 3] with one"),
        (lambda y: y.sum().detach(), ValueError, "one of sizes [] without one"),
        (lambda y: 3, TypeError, "an int"),
    ],
)
def test_what_is_no_loss_is_refused(loss_fn, error, got):
    with pytest.raises(error) as raised:
        amp.preflight(Net(), batch()[0], loss_fn)
    expected = "preflight: expected a loss of one element with a grad_fn, got "
    assert str(raised.value) == expected + got


def wide(in_features: int) -> nn.Sequential:
    """One linear is large enough for float8 if it has 1,024 inputs."""
    torch.manual_seed(0)
    first = nn.Linear(4, in_features)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(in_features, 1024), nn.Linear(1024, 3))


def notes_on_float8(model: nn.Module) -> list[str]:
    x, target = batch()
    found = amp.preflight(model, x, lambda y: F.cross_entropy(y, target))
    return [note for note in found.notes if "float8" in note]


def test_a_note_says_whether_float8_fits_and_pays(monkeypatch):
    (note,) = notes_on_float8(wide(1024))
    assert re.fullmatch(
        r"float8=True at O5 fits: relative error: loss \S+, outputs 0\.0\d+, grads 0\.0\d+\. "
        r"An iteration takes \S+ ms, without it \S+ ms: (recommended|it does not pay here)\."
        r"( Each linear by itself is slower in float8\.)?",
        note,
    )
    monkeypatch.setattr(preflight, "losing_linears", lambda iteration: " Some are slower.")
    assert notes_on_float8(wide(1008)) == []
    tried = preflight.trial

    def taking(milliseconds, level, *args):
        verdict = tried(level, *args)
        taken = {"O5": 10.0, "O5, float8": milliseconds}.get(level, 10.0)
        return dataclasses.replace(verdict, milliseconds=taken)

    for milliseconds, end in ((9.5, "recommended."), (9.6, "it does not pay here.")):
        monkeypatch.setattr(preflight, "trial", partial(taking, milliseconds))
        (note,) = notes_on_float8(wide(1024))
        times = f"An iteration takes {milliseconds} ms, without it 10 ms: "
        assert note.endswith(f"{times}{end} Some are slower.")
    monkeypatch.setattr(preflight, "trial", partial(taking, None))
    (note,) = notes_on_float8(wide(1024))
    assert re.search(r"grads 0\.0\d+\.$", note)


def test_a_note_says_why_there_is_no_float8(monkeypatch):
    tried = preflight.trial

    def refused(level, *args):
        if level == "O5, float8":
            raise RuntimeError("initialize: expected a newer device")
        return tried(level, *args)

    monkeypatch.setattr(preflight, "trial", refused)
    assert notes_on_float8(wide(1024)) == ["float8=True: expected a newer device"]


class Wide(nn.Module):
    """Linears of five shapes. Those of few and of attention.out_proj differ in rows alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 1024)
        self.attention = nn.MultiheadAttention(1024, 8)
        self.up, self.gate = nn.Linear(1024, 2048), nn.Linear(1024, 2048)
        self.few, self.down = nn.Linear(1024, 1024), nn.Linear(2048, 1024)
        self.last = nn.Linear(1024, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).unsqueeze(1)
        x = self.attention(x, x, x, need_weights=False)[0].squeeze(1)
        x = self.down(self.up(x).relu() * self.gate(x))
        return self.last(x + self.few(x[:2])[0])


#: Rows, inputs and outputs of Wide's linears in float8.
IN, OUT = (16, 1024, 3072), (16, 1024, 1024)
UP, FEW, DOWN = (16, 1024, 2048), (2, 1024, 1024), (16, 2048, 1024)

#: The shapes that are slower in float8, their linears, and the modules of the others.
LOSING = {
    "none": ((), "", []),
    "one": ((DOWN,), "down", ["attention", "attention.out_proj", "up", "gate", "few"]),
    "two of a shape": ((UP,), "up, gate", ["attention", "attention.out_proj", "few", "down"]),
    "four": ((FEW, DOWN, UP), "up, gate, few and 1 more", ["attention", "attention.out_proj"]),
    "a part of a module": ((OUT,), "attention.out_proj", ["up", "gate", "few", "down"]),
    "all but such a module": ((OUT, UP, FEW, DOWN), "attention.out_proj, up, gate and 2 more", []),
    "a module's own": (
        (IN,),
        "attention.in_proj_weight",
        ["attention.out_proj", "up", "gate", "few", "down"],
    ),
}


@pytest.fixture
def asked(request, monkeypatch) -> list[tuple[tuple[int, ...], bool]]:
    """Which linears were timed, and whether in float8. The shapes of the test's parameter take as
    long in float8 as at O5 alone, others half as long."""
    found = []

    def time(self: Iteration, scale: float = 1.0) -> float:
        assert self.batch.requires_grad and self.batch.dtype == torch.bfloat16
        shape = *self.batch.shape, self.model[0].out_features
        found.append((shape, self.float8 is not None))
        return 1.0 if self.float8 is not None and shape not in request.param else 2.0

    monkeypatch.setattr(Iteration, "time", time)
    return found


@pytest.mark.parametrize(
    ("asked", "slow", "others"), LOSING.values(), ids=LOSING, indirect=["asked"]
)
def test_linears_that_are_slower_in_float8_are_named(asked, slow, others):
    x, target = batch()
    found = losing_linears(Iteration(Wide(), x, lambda y: F.cross_entropy(y, target)))
    takes = f" float8={others} takes the others." if others else ""
    assert found == (f" Slower in float8, each by itself: {slow}.{takes}" if slow else "")
    assert asked == [
        (shape, in_float8) for shape in (IN, OUT, UP, FEW, DOWN) for in_float8 in (False, True)
    ]
    if others:
        torchamp.Amp(Wide(), None, "O5", float8=others, verbosity=0).close()


@pytest.mark.parametrize("asked", [{(16, 1024, 1024)}], indirect=True)
def test_where_all_linears_are_slower_in_float8(asked):
    x, target = batch()
    found = losing_linears(Iteration(wide(1024), x, lambda y: F.cross_entropy(y, target)))
    assert found == " Each linear by itself is slower in float8." and len(asked) == 2


def test_each_timed_iteration_casts_to_float8_again():
    x = torch.randn(16, 16, dtype=torch.bfloat16, requires_grad=True)
    model = nn.Sequential(nn.Linear(16, 16, bias=False))
    with torchamp.Amp(model, None, "O5", float8=["0"], verbosity=0):
        products, casts = _C.float8_counts()
        Iteration(model, x, torch.sum).time()
    now = _C.float8_counts()
    assert now[0] - products == now[1] - casts == 9  # of three iterations

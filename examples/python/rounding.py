"""What 16-bit formats lose: updates that are small beside their weight, and small grads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import figures
import torch
from digits import Digits
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

FORMATS = [torch.float32, torch.float16, torch.bfloat16]
SMALLEST_UPDATE = 2.0**-26  # of the figure
LOSS_SCALES = [2.0**exponent for exponent in range(25)]
FIRST_LOSS_SCALE = 2.0**16  # of torch.amp and of the dynamic levels


def format_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def smallest_kept(dtype: torch.dtype) -> float:
    """The smallest power of two that changes a weight of 1 when it is added to it."""
    one, update = torch.ones((), dtype=dtype), 1.0
    while one + update / 2 != one:
        update /= 2
    return update


def grads(model: nn.Module, batch: Digits, scale: float, float16: bool) -> Tensor:
    """The grads of all parameters [n] in one backward of ``scale`` × loss, as they come."""
    model.train()
    model.zero_grad()
    with torch.autocast(batch.images.device.type, dtype=torch.float16, enabled=float16):
        loss = cross_entropy(model(batch.images), batch.labels)
    (loss * scale).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def share_of_lost_updates(
    model: nn.Module, batch: Digits, rate: float, dtype: torch.dtype
) -> float:
    """The share of a plain SGD step's updates that leave their weight as it is, if weights are
    kept in ``dtype``."""
    updates = rate * grads(model, batch, 1.0, float16=False)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).to(dtype)
    stepped = (weights.float() - updates).to(dtype)
    return (stepped == weights)[updates != 0].double().mean().item()


def shares_of_lost_grads(model: nn.Module, batch: Digits) -> tuple[list[float], list[float]]:
    """The shares of the grads that are 0 and that are not finite in float16, at each loss scale.
    Grads that are 0 in float32 do not count."""
    expected = grads(model, batch, 1.0, float16=False)
    zero, infinite = [], []
    for scale in LOSS_SCALES:
        got = grads(model, batch, scale, float16=True)[expected != 0]
        zero.append((got == 0).double().mean().item())
        infinite.append((~got.isfinite()).double().mean().item())
    return zero, infinite


def draw_updates(axes: Axes, lost: Sequence[float]) -> None:
    """For each format the updates of a weight of 1 that are lost. ``lost``: the share of the
    network's updates."""
    for row, dtype in enumerate(FORMATS):
        kept, name = smallest_kept(dtype), format_name(dtype)
        color = figures.COLORS[{"float16": "O2", "bfloat16": "O5"}.get(name, name)]
        axes.barh(row, kept - SMALLEST_UPDATE, left=SMALLEST_UPDATE, color=color, height=0.5)
        exponent = round(torch.tensor(kept).log2().item())
        axes.text(kept * 1.3, row, f"$2^{{{exponent}}}$ is kept", va="center", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_xlim(SMALLEST_UPDATE, 1)
    axes.set_ylim(len(FORMATS) - 0.5, -0.5)
    axes.set_yticks(range(len(FORMATS)), [format_name(dtype) for dtype in FORMATS])
    axes.set_xlabel("update of a weight of 1 (log scale)")
    axes.set_title("Updates too small to change a weight", fontsize=10, loc="left")
    axes.grid(visible=False, axis="y")
    figures.label_rows(axes, [f"{share:.0%}" for share in lost])
    axes.text(1.02, 1.02, "lost of this\nnetwork's updates", transform=axes.transAxes, fontsize=8)


def draw_grads(axes: Axes, model: nn.Module, batch: Digits) -> None:
    """Shares of lost grads against the loss scale."""
    zero, infinite = shares_of_lost_grads(model, batch)
    for label, shares, color in [
        ("rounded to 0", zero, figures.COLORS["O2"]),
        ("infinite or NaN", infinite, figures.COLORS["O1"]),
    ]:
        percents = [100 * share for share in shares]
        axes.plot(LOSS_SCALES, percents, label=label, color=color, linewidth=2)
    axes.axvline(FIRST_LOSS_SCALE, color=figures.FLOAT32, linestyle=":", label="initial loss scale")
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=0.01)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 200)
    axes.set_xlabel("loss scale (log scale)")
    axes.set_ylabel("% of the grads (log scale above 0.01)")
    axes.set_title("Grads lost in a float16 backward", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper center")


def draw_rounding(model: nn.Module, batch: Digits, rate: float, caption: str, path: Path) -> None:
    """Writes a PNG. ``model``: in float32. ``rate``: the learning rate of its updates."""
    lost = [share_of_lost_updates(model, batch, rate, dtype) for dtype in FORMATS]
    figure, axes = figures.new_figure(1, 2, (13, 4))
    draw_updates(axes[0, 0], lost)
    draw_grads(axes[0, 1], model, batch)
    figures.save(figure, "What rounding and underflow lose, after training", caption, path)

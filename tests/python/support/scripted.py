"""Does what a script of events says, and tells after every event what a program can see.

tests/languages/main.cpp does the same in C++.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

import torchamp
from torchamp import amp, optimizers

LOSSES = 2

#: What can be seen after an event, by name: numbers as text.
Seen = dict[str, str]

#: LibTorch rounds beta1's average in another order than torch does, unless beta1 is 0.
BETAS = (0.0, 0.75)

RECIPES = {
    "SGD": lambda params: torch.optim.SGD(params, 0.05, momentum=0.875),
    "Adam": lambda params: torch.optim.Adam(params, 0.01, BETAS, amsgrad=True),
    "AdamW": lambda params: torch.optim.AdamW(params, 0.01, BETAS),
    "Adagrad": lambda params: torch.optim.Adagrad(params, 0.05, lr_decay=0.125),
    "RMSprop": lambda params: torch.optim.RMSprop(params, 0.01, momentum=0.5),
    "FusedSGD": lambda params, **storage: optimizers.FusedSGD(
        params, 0.05, momentum=0.9, **storage
    ),
    "FusedLARS": lambda params, **storage: optimizers.FusedLARS(params, 1.0, **storage),
    "FusedAdam": lambda params, **storage: optimizers.FusedAdam(params, 0.01, **storage),
    "FusedAdamW": lambda params, **storage: optimizers.FusedAdamW(params, 0.01, **storage),
    "FusedAdagrad": lambda params, **storage: optimizers.FusedAdagrad(params, 0.05, **storage),
    "FusedNovoGrad": lambda params, **storage: optimizers.FusedNovoGrad(params, 0.01, **storage),
    "FusedLAMB": lambda params, **storage: optimizers.FusedLAMB(params, 0.01, **storage),
}

#: The options of optimizers and of initialize, and what makes a value of their text.
STORAGE: dict[str, Callable[[str], object]] = {
    "state_dtype": lambda name: getattr(torch, name),
    "stochastic_rounding": lambda text: bool(int(text)),
}
OVERRIDES: dict[str, Callable[[str], object]] = {
    "keep_batchnorm_fp32": lambda text: bool(int(text)),
    "master_weights": lambda text: bool(int(text)),
    "adopt_data_writes": lambda text: bool(int(text)),
    "materialize_master_grads": lambda text: bool(int(text)),
    "max_consecutive_skips": int,
    "min_loss_scale": float,
    "max_loss_scale": float,
}


class Holder(nn.Module):
    """A parameter alone."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)
        #: Frozen until a group is added for it.
        self.extra = nn.Linear(4, 2, bias=False).requires_grad_(False)
        self.scalar = Holder(torch.rand(()))
        self.empty = Holder(torch.rand(0, 2))
        self.strided = Holder(torch.rand(3, 2).t())
        self.sliced = Holder(torch.rand(3, 4)[:, ::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = torch.relu(self.norm(self.first(x)))
        return self.last(self.hidden) + self.extra(self.hidden)


class RaisedInBackward(Exception):
    pass


def raise_in_backward(grad: torch.Tensor) -> None:
    raise RaisedInBackward


def options_in(words: Sequence[str]) -> dict[str, str]:
    """The values of words such as "lr=0.5", by name."""
    return dict(word.split("=") for word in words if "=" in word)


def groups_in(words: Sequence[str]) -> Iterator[list[str]]:
    """The words between bars."""
    yield from (group.split() for group in " ".join(words).split("|"))


class Run:
    """One training: does to a net and its optimizers what an event says."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.net = Net()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.amp: torchamp.Amp | None = None
        #: The optimizers whose masters' grads are shown.
        self.looked_at: set[int] = set()
        self.swapped: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.seen: Seen = {}

    def params(self, *parts: str) -> list[nn.Parameter]:
        """Those of parts of the net, and those that are named themselves."""
        named = list(self.net.named_parameters())
        return [p for part in parts for name, p in named if f"{name}.".startswith(f"{part}.")]

    def some(self, indices: Sequence[str]) -> list[torch.optim.Optimizer]:
        """Those of the numbers; all if there are none."""
        return [self.optimizers[int(i)] for i in indices] or self.optimizers

    # ---- the events

    def optimizer(self, kind: str, *words: str) -> None:
        options = {name: STORAGE[name](text) for name, text in options_in(words).items()}
        parts = [word for word in words if "=" not in word]
        groups = [{"params": self.params(*group)} for group in groups_in(parts)]
        optimizer = RECIPES[kind](groups, **options)
        for i, group in enumerate(optimizer.param_groups):
            group["lr"] *= 0.5**i
        self.optimizers.append(optimizer)

    def initialize(self, level: str, loss_scale: str, *words: str) -> None:
        overrides = {name: OVERRIDES[name](text) for name, text in options_in(words).items()}
        self.amp = torchamp.Amp(
            self.net,
            self.optimizers,
            level,
            loss_scale=loss_scale,
            num_losses=LOSSES,
            verbosity=0,
            **overrides,
        )

    def release(self) -> None:
        self.amp.release()
        self.amp = None
        self.looked_at.clear()

    def backward(self, loss_id: str, seed: str, *flags: str) -> None:
        options = {
            "delay_unscale": "delayed" in flags,
            "delay_overflow_check": "deferred" in flags,
        }
        loss = self.loss(loss_id, seed, flags)
        self.show("loss", loss)
        given = self.given(flags)
        with self.amp.scale_loss(loss, given, int(loss_id), **options) as scaled_loss:
            self.use(loss, scaled_loss, given, flags)
        if "late" in flags:
            scaled_loss.backward()

    def use(
        self,
        loss: torch.Tensor,
        scaled_loss: torch.Tensor,
        given: list[torch.optim.Optimizer],
        flags: Sequence[str],
    ) -> None:
        """What a program does in the context of scale_loss."""
        if "raising" in flags:
            self.net.hidden.register_hook(raise_in_backward)
        if "zeroing" in flags:
            for optimizer in given:
                optimizer.zero_grad()
        if "twice" in flags:
            scaled_loss.backward(retain_graph=True)
        if "unscaled" in flags:
            loss.backward()
        elif "unused" not in flags:
            scaled_loss.backward(retain_graph="late" in flags)
        if "stepping" in flags:
            given[0].step()
        if "nested" in flags:
            with self.amp.scale_loss(loss, given):
                pass

    def clip_norm(self, max_norm: str, *indices: str) -> None:
        norm = amp.clip_grad_norm_(self.some(indices), float(max_norm))
        self.show("norm", torch.nan_to_num(norm, math.inf, math.inf))

    def clip_value(self, value: str, *indices: str) -> None:
        amp.clip_grad_value_(self.some(indices), float(value))

    def clip_model(self, value: str) -> None:
        """As LibTorch's function, whose writes PyTorch does not count."""
        for param in self.net.parameters():
            if param.grad is not None:
                param.grad.data.clamp_(-float(value), float(value))

    def step(self, index: str) -> None:
        self.optimizers[int(index)].step()

    def closure(self, index: str, *words: str) -> None:
        optimizer = self.optimizers[int(index)]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            self.backward(*words)
            return torch.zeros(())

        optimizer.step(closure)

    def zero(self, index: str, to: str) -> None:
        self.optimizers[int(index)].zero_grad(set_to_none=to == "none")

    def zero_model(self, to: str) -> None:
        self.net.zero_grad(set_to_none=to == "none")

    def drop(self, *parts: str) -> None:
        for param in self.params(*parts):
            param.grad = None

    def replace(self, *parts: str) -> None:
        for param in self.params(*parts):
            if param.grad is not None:
                param.grad = param.grad * 0.5

    def halve_grads(self, *parts: str) -> None:
        for param in self.params(*parts):
            if param.grad is not None:
                param.grad.mul_(0.5)

    def negate(self, index: str) -> None:
        params = list(amp.master_params(self.optimizers[int(index)]))
        self.looked_at.add(int(index))
        for param in params:
            if param.grad is not None:
                param.grad.neg_()

    def set(self, index: str, name: str, value: str) -> None:
        for group in self.optimizers[int(index)].param_groups:
            group[name] = type(group[name])(float(value))

    def add_group(self, index: str) -> None:
        weight = self.net.extra.weight.requires_grad_(True)
        self.optimizers[int(index)].add_param_group({"params": [weight], "lr": 0.0625})

    def scale(self, loss_id: str, value: str, growth_tracker: str) -> None:
        self.amp.loss_scalers[int(loss_id)].load_state(float(value), int(growth_tracker), 1)

    def freeze(self, *parts: str) -> None:
        for param in self.params(*parts):
            param.requires_grad_(False)

    def thaw(self, *parts: str) -> None:
        for param in self.params(*parts):
            param.requires_grad_(True)

    def write(self, *parts: str) -> None:
        with torch.no_grad():
            for param in self.params(*parts):
                param.mul_(0.5)

    def swap(self, *parts: str) -> None:
        self.swapped = [(param, param.detach().clone()) for param in self.params(*parts)]
        self.write(*parts)

    def swap_back(self) -> None:
        with torch.no_grad():
            for param, held in self.swapped:
                param.copy_(held)

    def halve_states(self, index: str) -> None:
        for state in self.optimizers[int(index)].state.values():
            for name, value in state.items():
                if name != "step":
                    value.mul_(0.5)

    def clear_states(self, index: str) -> None:
        self.optimizers[int(index)].state.clear()

    def write_data(self, *parts: str) -> None:
        for param in self.params(*parts):
            param.data.mul_(0.5)

    def refresh(self) -> None:
        self.amp.refresh_masters()

    def look(self, *indices: str) -> None:
        """From now on the grads of masters are shown, which must be made for that."""
        for optimizer in self.some(indices):
            list(amp.master_params(optimizer))
            self.looked_at.add(self.optimizers.index(optimizer))

    def save(self, file: str) -> None:
        self.amp.save(file)

    def load(self, file: str) -> None:
        self.amp.load(file)

    # ---- the loss of a backward

    def loss(self, loss_id: str, seed: str, flags: Sequence[str]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int(seed))
        reach = options_in(flags).get("reach")
        if reach is None:
            loss, overflowing = self.loss_of_output(loss_id, generator, "inner" in flags)
        else:
            params = self.params(*reach.split(","))
            loss, overflowing = self.loss_of_params(params, generator), params[-1]
        if masters := options_in(flags).get("masters"):
            self.look(masters)
            params = list(amp.master_params(self.optimizers[int(masters)]))
            loss = loss + self.loss_of_params(params, generator)
        if "overflow" in flags:
            loss = loss + overflowing.float().sum() * math.inf
        if "tiny" in flags:
            loss = loss * 2.0**-40
        return loss * math.nan if "nan" in flags else loss

    def loss_of_output(
        self, loss_id: str, generator: torch.Generator, is_inner: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a batch, and a parameter that it reaches; an inner one reaches the layers before
        `hidden` alone."""
        x = torch.randn(8, 3, generator=generator)
        target = torch.randint(2, (8,), generator=generator)
        output = self.net(x)
        if is_inner:
            return self.net.hidden.float().square().mean(), self.net.norm.bias
        if loss_id == "0":
            return nn.functional.cross_entropy(output, target), self.net.last.bias
        return output.square().mean(), self.net.last.bias

    def loss_of_params(
        self, params: list[nn.Parameter], generator: torch.Generator
    ) -> torch.Tensor:
        """Whose grads are drawn."""
        coefs = [torch.randn(param.shape, generator=generator) for param in params]
        products = [(param.float() * coef).sum() for param, coef in zip(params, coefs)]
        return torch.stack(products).sum()

    def given(self, flags: Sequence[str]) -> list[torch.optim.Optimizer]:
        """The optimizers of a backward; of an inner one the first alone."""
        indices = options_in(flags).get("of", "0" if "inner" in flags else "")
        return self.some(indices.split(",") if indices else [])

    # ---- what can be seen

    def show_values(self, name: str, values: Sequence[float]) -> None:
        self.seen[name] = " %.17g" * len(values) % tuple(values)

    def show(self, name: str, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            self.show_values(name, tensor.flatten().tolist())

    def show_all(self) -> None:
        for i, scaler in enumerate(self.amp.loss_scalers if self.amp else []):
            self.show_values(f"scalers.{i}", scaler.state())
        in_float32 = self.net.state_dict()
        for name, param in self.net.named_parameters():
            self.show(f"params.{name}", param)
            self.show(f"masters.{name}", in_float32[name])
            self.show(f"grads.{name}", param.grad)
        for name, buffer in self.net.named_buffers():
            self.show(f"buffers.{name}", buffer)
        for i, optimizer in enumerate(self.optimizers):
            if self.amp:
                self.show_telemetry(f"optimizers.{i}.", optimizer)
            self.show_optimizer(f"optimizers.{i}.", optimizer, i in self.looked_at)

    def show_telemetry(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        known = amp.telemetry(optimizer)
        stepped = -1 if known.stepped is None else known.stepped
        counts = [known.steps, known.skipped_steps, stepped]
        self.show_values(f"{name}telemetry", [*counts, *known.loss_scales])

    def show_optimizer(self, name: str, optimizer: torch.optim.Optimizer, is_looking: bool) -> None:
        if is_looking:
            params = (param for group in optimizer.param_groups for param in group["params"])
            for i, param in enumerate(params):
                self.show(f"{name}{i}.grad", param.grad)
        for i, state in optimizer.state_dict()["state"].items():
            for key, tensor in state.items():
                self.show(f"{name}{i}.{key}", tensor)

    def follow(self, line: str) -> Seen:
        """What can be seen after the event."""
        name, *words = line.partition("#")[0].split()
        self.seen = {}
        try:
            getattr(self, name)(*words)
        except (RaisedInBackward, RuntimeError, ValueError):
            self.seen["raised"] = ""
        self.show_all()
        return self.seen

    def close(self) -> None:
        if self.amp:
            self.amp.close()


def follow(script: Sequence[str]) -> list[Seen]:
    """What can be seen after each event."""
    run = Run()
    try:
        return [run.follow(line) for line in script]
    finally:
        run.close()

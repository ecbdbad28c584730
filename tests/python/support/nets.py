"""Small models, data and training steps for the tests of the front end."""

import contextlib
import io
import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from torchamp import amp, optimizers
from torchamp._load import _C

LEVELS = ["O0", "O1", "O2", "O3", "O4", "O5"]
MASTER_LEVELS = ["O2", "O5"]


class Net(nn.Module):
    """Linear, batch norm, linear: 6 parameters, 3 buffers."""

    def __init__(self, inputs: int = 4) -> None:
        super().__init__()
        self.inputs = inputs
        self.first = nn.Linear(inputs, 2 * inputs)
        self.norm = nn.BatchNorm1d(2 * inputs)
        self.last = nn.Linear(2 * inputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Planted(nn.Module):
    """Linear layers around a function that a test plants, as the module "middle"."""

    def __init__(self, function: Callable, size: int = 4) -> None:
        super().__init__()
        self.before = nn.Linear(size, size)
        self.middle = nn.Module()
        self.after = nn.Linear(size, size)
        self.middle.forward = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.middle(self.before(x)))


class Steep(torch.autograd.Function):
    """The identity, with a steep backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1e30


def linear_net() -> nn.Sequential:
    """Two linear layers: 4 parameters."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def sgd(model: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.125, "momentum": 0.5, **options})


def adam(model: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), **{"lr": 0.01, "eps": 1e-4, **options})


def fused_adam(model: nn.Module) -> torch.optim.Optimizer:
    return optimizers.FusedAdam(model.parameters(), lr=0.01)


def initialized(opt_level: str, model=None, optimizer=sgd, device="cpu", **options):
    """(model, optimizer) at `opt_level`, silent."""
    model = (Net() if model is None else model).to(device)
    options = {"verbosity": 0, **options}
    return amp.initialize(model, optimizer(model), opt_level=opt_level, **options)


def batch(seed: int = 0, device="cpu", inputs: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, inputs, generator=generator)
    return x.to(device), (x.sum(1) > 0).long().to(device)


def loss_of(model: nn.Module, seed: int = 0) -> torch.Tensor:
    x, target = batch(seed, next(model.parameters()).device, getattr(model, "inputs", 4))
    return nn.functional.cross_entropy(model(x).float(), target)


def backward(model, optimizer, seed: int = 0, **options) -> None:
    with amp.scale_loss(loss_of(model, seed), optimizer, **options) as scaled_loss:
        scaled_loss.backward()


def train_step(model, optimizer, seed: int = 0) -> None:
    optimizer.zero_grad()
    backward(model, optimizer, seed)
    optimizer.step()


def finished(optimizer: torch.optim.Optimizer) -> amp.Telemetry:
    """The optimizer's telemetry, after all work of the device. Messages have been logged too."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return amp.telemetry(optimizer)


@contextlib.contextmanager
def overflow_at(param: torch.Tensor, value: float = math.inf):
    """A context in which the first element of the parameter's gradient is not finite."""

    def plant(grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        grad.view(-1)[0] = value
        return grad

    handle = param.register_hook(plant)
    try:
        yield
    finally:
        handle.remove()


def everything(model, optimizer) -> dict[str, torch.Tensor]:
    """A copy of every tensor that a step may write: of the model, the masters, their state."""
    tensors = {f"model.{name}": t for name, t in model.named_parameters()}
    for i, param in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        tensors[f"master.{i}"] = _C.stepped_for(param)
        for name, value in optimizer.state.get(param, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"state.{i}.{name}"] = value
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """The names whose bytes differ, or that only one side has."""
    common = before.keys() & after.keys()
    return (before.keys() ^ after.keys()) | {
        name for name in common if not torch.equal(_bytes(before[name]), _bytes(after[name]))
    }


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def master_values(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Copies of what an optimizer steps. Does not count as an access."""
    return [param.value().clone() for param in optimizer._torchamp.core.params()]


@contextlib.contextmanager
def warned():
    """A list, which has the texts of the warnings within after it, also of those told before."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(each.message) for each in caught]


def in_thread(function: Callable):
    """The result of `function` in another thread."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def file_by(save: Callable[[io.BytesIO], None]) -> io.BytesIO:
    """What it writes, to be read."""
    file = io.BytesIO()
    save(file)
    file.seek(0)
    return file

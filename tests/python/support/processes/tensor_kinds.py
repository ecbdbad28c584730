"""Passes tensors without memory of their own to everything that takes tensors, and prints a line of
JSON for each: [function, kind, type of the error, message, whether the other tensors stayed]."""

import copy
import json

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import torchamp
from torchamp import _C, amp, ops

E5M2 = torch.float8_e5m2


class Wrapper(torch.Tensor):
    """Has a tensor and no memory."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def unwrapped(value):
            return value.inner if isinstance(value, Wrapper) else value

        result = function(*map(unwrapped, args), **(kwargs or {}))
        return Wrapper(result) if isinstance(result, torch.Tensor) else result


def dtensor(tensor):
    return distribute_tensor(tensor, init_device_mesh("cpu", (1,)), [Replicate()])


def fake(tensor):
    return FakeTensorMode(allow_non_fake_inputs=True).from_tensor(tensor)


def seen_by(transform):
    """The tensor that a function under `transform` gets, after its end."""

    def make(tensor):
        seen = []

        def function(argument):
            seen.append(argument)
            return argument.sum()

        transform(function)(tensor)
        return seen[0]

    return make


def freed(tensor):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def quantized(tensor):
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


KINDS = {
    "DTensor": dtensor,
    "wrapper": Wrapper,
    "FakeTensor": fake,
    "meta": lambda tensor: tensor.to("meta"),
    "vmap": seen_by(torch.vmap),
    "grad": seen_by(torch.func.grad),
    "functional": torch._to_functional_tensor,
    "nested": lambda tensor: torch.nested.nested_tensor([tensor]),
    "jagged": lambda tensor: torch.nested.nested_tensor([tensor], layout=torch.jagged),
    "quantized": quantized,
    "csr": lambda tensor: tensor.to_sparse_csr(),
    "MKLDNN": lambda tensor: tensor.to_mkldnn(),
    "freed": freed,
}


class Impossible(Exception):
    """torch itself refuses such a parameter or grad, or makes a plain one of it."""


class Case:
    """A tensor of one kind, and plain ones that are not to change."""

    def __init__(self, kind):
        self.kind = kind
        self.odd = KINDS[kind](torch.ones(2, 3))
        self.plain = torch.ones(2, 3)
        self.found_inf = torch.zeros(())
        self.model = nn.Linear(3, 2)
        self.before = copy.deepcopy(self.watched())

    def watched(self):
        return [self.plain, self.found_inf, *self.model.parameters()]

    def params(self):
        """A plain one and an odd one, with grads."""
        self.plain.grad = torch.ones(2, 3)
        try:
            self.odd.grad = KINDS[self.kind](torch.ones(2, 3))
        except Exception as error:
            raise Impossible from error
        return [self.plain, self.odd]

    def odd_parameter(self):
        try:
            param = nn.Parameter(self.odd, requires_grad=False)
        except Exception as error:
            raise Impossible from error
        if _C.has_memory(param):
            raise Impossible
        return param

    def stayed(self):
        pairs = zip(self.before, self.watched())
        return all(torch.equal(before, now) for before, now in pairs)


def unscale(grads, master_grads, case):
    ops.unscale(grads, master_grads, torch.ones(()), case.found_inf)


def stepped_by(make):
    """Steps a plain and an odd parameter by grads of their kinds."""

    def step(case):
        optimizer = make(case.model.parameters())
        optimizer.param_groups[0]["params"] = case.params()
        try:
            optimizer.step()
        except Exception:
            assert not optimizer.state, "states were made"
            raise

    return step


def grad_scaler(method):
    """A GradScaler's `method` of an optimizer with a grad of the kind."""

    def call(case):
        optimizer = torchamp.optimizers.FusedAdam(case.model.parameters(), lr=0.1)
        optimizer.param_groups[0]["params"] = case.params()
        scaler = torchamp.GradScaler("cpu")
        scaler.scale(torch.ones(()))
        getattr(scaler, method)(optimizer)

    return call


def initialize(level):
    def call(case):
        case.model.register_parameter("odd", case.odd_parameter())
        try:
            amp.initialize(case.model, opt_level=level, verbosity=0)
        finally:
            del case.model.odd

    return call


def scale_loss(case):
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(case.model, optimizer, opt_level="O0", verbosity=0)
    with amp.scale_loss(case.odd, optimizer):
        pass


FUNCTIONS = {
    "scale": lambda c: ops.scale([c.plain, c.odd], [c.plain, c.odd], 2.0, c.found_inf),
    "unscale": lambda c: unscale([c.plain, c.odd], [c.plain, c.plain], c),
    "unscale into": lambda c: unscale([c.plain, c.plain], [c.plain, c.odd], c),
    "axpby": lambda c: ops.axpby(1.0, [c.odd], 1.0, [c.plain], [c.plain], c.found_inf),
    "check": lambda c: ops.check([c.plain, c.odd], c.found_inf),
    "check_l2norm": lambda c: ops.check_l2norm([c.odd], c.found_inf),
    "l2norm": lambda c: ops.l2norm([c.plain, c.odd]),
    "copy_cast": lambda c: ops.copy_cast([c.plain], [c.odd]),
    "copy_cast of": lambda c: ops.copy_cast([c.odd], [c.plain]),
    "found_inf": lambda c: ops.check([c.plain], c.odd),
    "float8_scales": lambda c: ops.float8_scales([c.plain, c.odd], dtype=E5M2),
    "float8_cast": lambda c: ops.float8_cast([c.plain, c.odd], torch.ones(2), dtype=E5M2),
    "scales": lambda c: ops.float8_cast([c.plain] * 6, c.odd, dtype=E5M2),
    "FusedAdam": stepped_by(lambda params: torchamp.optimizers.FusedAdam(params, lr=0.1)),
    "FusedLAMB": stepped_by(lambda params: torchamp.optimizers.FusedLAMB(params, lr=0.1)),
    "FusedSGD": stepped_by(lambda params: torchamp.optimizers.FusedSGD(params, lr=0.1)),
    "GradScaler.unscale_": grad_scaler("unscale_"),
    "GradScaler.step": grad_scaler("step"),
    "initialize O0": initialize("O0"),
    "initialize O1": initialize("O1"),
    "initialize O2": initialize("O2"),
    "scale_loss": scale_loss,
}


def outcome(call, case):
    try:
        call(case)
    except Exception as error:
        return type(error).__name__, str(error)
    return "none", ""


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for kind in KINDS:
        for name, call in FUNCTIONS.items():
            print(json.dumps([name, kind, "crash", "", False]), flush=True)
            case = Case(kind)
            error, message = outcome(call, case)
            print(json.dumps([name, kind, error, message, case.stayed()]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

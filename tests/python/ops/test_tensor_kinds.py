"""Tensors without memory of their own are refused before anything is changed, and crash nothing;
those with memory are taken, whatever their class."""

import json
import os

import pytest
import torch
from processes import tensor_kinds

from torchamp import ops, optimizers

#: Ops that meta tensors alone dispatch do nothing, as all ops of torch.
ON_META = {
    *[("copy_cast of", kind) for kind in ("FakeTensor", "meta")],
    ("scales", "FakeTensor"),
    *[(f"Fused{name}", "meta") for name in ("Adam", "LAMB", "SGD")],
    *[(f"GradScaler.{method}", "meta") for method in ("unscale_", "step")],
}
#: Functions that take the shards of DTensors: test_dtensor.py.
OF_SHARDS = {
    (function, "DTensor")
    for function in (
        *("FusedAdam", "FusedSGD", "GradScaler.unscale_", "GradScaler.step"),
        *("initialize O0", "initialize O1"),
    )
}
#: A frozen parameter of a class that keeps its elements elsewhere stays as it is.
LEFT_ALONE = {(f"initialize {level}", "wrapper") for level in ("O0", "O1", "O2")}
CASES = [
    (function, kind)
    for function in tensor_kinds.FUNCTIONS
    for kind in tensor_kinds.KINDS
    if (function, kind) not in ON_META | OF_SHARDS | LEFT_ALONE
]


@pytest.fixture(scope="module")
def outcomes(server, tmp_path_factory):
    """The outcome of every function and kind, from a process that a crash ends."""
    folder = tmp_path_factory.mktemp("outcomes")
    done = server.start([tensor_kinds.__file__], folder, os.environ).wait()
    lines = (line for line in done.stdout.splitlines() if line.startswith('["'))  # gloo prints too
    return {(function, kind): rest for function, kind, *rest in map(json.loads, lines)}


@pytest.mark.parametrize("function, kind", CASES)
def test_refused_before_anything_is_changed(outcomes, function, kind):
    error, message, stayed = outcomes[function, kind]
    if error == "Impossible":
        pytest.skip("torch makes no such parameter or grad")
    assert error in ("TypeError", "RuntimeError"), message
    assert ": expected " in message and ", got " in message
    assert stayed, "a plain tensor was changed"


def test_the_message_names_what_to_pass_instead_of_a_dtensor(outcomes):
    assert outcomes["check", "DTensor"][1] == (
        "check: expected tensors[1] to have memory of its own, got a subclass that wraps others; "
        "of a DTensor, pass .to_local()"
    )


@pytest.mark.parametrize("function", sorted(function for function, _ in OF_SHARDS))
def test_shards_are_taken(outcomes, function):
    assert outcomes[function, "DTensor"][:2] == ["none", ""]


class Marked(torch.Tensor):
    """Has memory, and sees every op."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [torch.nn.Parameter, Marked])
def test_subclasses_with_memory_are_taken(kind):
    tensor = torch.ones(3)
    special = tensor.as_subclass(kind)
    found_inf = torch.zeros(())
    ops.scale([special], [special], 3.0, found_inf)
    assert tensor.tolist() == [3, 3, 3] and found_inf == 0
    special.grad = torch.ones(3)
    optimizers.FusedSGD([special], lr=1.0).step()
    assert tensor.tolist() == [2, 2, 2]


def test_a_lazy_negation_is_seen():
    outputs = [torch.zeros(3)]
    ops.scale([torch._neg_view(torch.ones(3))], outputs, 2.0, torch.zeros(()))
    assert outputs[0].tolist() == [-2, -2, -2]


def test_calls_inside_of_vmap_are_refused():
    with pytest.raises(RuntimeError, match="^check: expected a call outside of torch.vmap"):
        torch.vmap(lambda x: ops.check([x], torch.zeros(())))(torch.ones(2, 3))

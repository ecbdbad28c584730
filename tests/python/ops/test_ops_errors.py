"""Invalid arguments of the ops: each message, and that nothing is written."""

import re

import pytest
import torch

from torchamp import ops

ONE = torch.ones(())
MEMORY = torch.ones(4)


def run(op: str, first=None, second=None, found_inf=None, per_tensor=None, inv_scale=ONE):
    first = [torch.ones(3)] if first is None else first
    second = [torch.zeros(3)] if second is None else second
    found_inf = torch.zeros(()) if found_inf is None else found_inf
    calls = {
        "scale": lambda: ops.scale(first, second, 2.0, found_inf, per_tensor),
        "unscale": lambda: ops.unscale(first, second, inv_scale, found_inf, False, per_tensor),
        "axpby": lambda: ops.axpby(1.0, first, 1.0, second, second, found_inf),
        "check": lambda: ops.check(first, found_inf, per_tensor),
        "check_l2norm": lambda: ops.check_l2norm(first, found_inf, per_tensor),
        "l2norm": lambda: ops.l2norm(first),
        "copy_cast": lambda: ops.copy_cast(first, second),
    }
    calls[op]()


CASES = [
    ("scale", {"first": 3}, TypeError, "inputs to be a list or a tuple of tensors, got int"),
    ("scale", {"first": [1.5]}, TypeError, "inputs[0] to be a tensor or None, got float"),
    ("scale", {"second": []}, RuntimeError, "outputs to have as many tensors as inputs, 1, got 0"),
    (
        "scale",
        {"second": [torch.zeros(4)]},
        RuntimeError,
        "outputs[0] to have the sizes of inputs[0], [3], got [4]",
    ),
    (
        "scale",
        {"first": [MEMORY[:3]], "second": [MEMORY[1:]]},
        RuntimeError,
        "outputs[0] to be inputs[0] or to share no memory with it, got one that overlaps it in",
    ),
    (
        "copy_cast",
        {"second": [torch.zeros(1).expand(3)]},
        RuntimeError,
        "model_params[0] to have memory for each element, got strides [0]",
    ),
    ("scale", {"found_inf": torch.zeros(2)}, RuntimeError, "found_inf to have one element"),
    (
        "scale",
        {"found_inf": torch.zeros((), dtype=torch.int32)},
        TypeError,
        "found_inf to be Float, got Int",
    ),
    (
        "scale",
        {"per_tensor": torch.zeros(2, dtype=torch.uint8)},
        RuntimeError,
        "found_inf_per_tensor to have one element per tensor, 1, got 2",
    ),
    ("unscale", {"first": "grads"}, TypeError, "scaled_grads to be a list or a tuple"),
    ("unscale", {"second": [object()]}, TypeError, "master_grads[0] to be a tensor or None"),
    (
        "unscale",
        {"inv_scale": torch.ones((), dtype=torch.float64)},
        TypeError,
        "inv_scale to be Float, got Double",
    ),
    (
        "unscale",
        {"second": [torch.zeros(3, device="meta")]},
        RuntimeError,
        "master_grads[0] to be on cpu, got meta",
    ),
    (
        "axpby",
        {"second": [torch.zeros(3), None]},
        RuntimeError,
        "y to have as many tensors as x, 1, got 2",
    ),
    (
        "check",
        {"first": [torch.ones(3), torch.ones(2, dtype=torch.int64)]},
        TypeError,
        "tensors[1] to be float16, bfloat16, float32 or float64, got Long",
    ),
    (
        "check_l2norm",
        {"first": [torch.ones(2, 2).to_sparse()]},
        TypeError,
        "tensors[0] to be dense, got layout Sparse",
    ),
    ("l2norm", {"first": {"a": 1}}, TypeError, "tensors to be a list or a tuple of tensors"),
    (
        "copy_cast",
        {"second": [torch.zeros(1, 3)]},
        RuntimeError,
        "model_params[0] to have the sizes of master_params[0], [3], got [1, 3]",
    ),
]


@pytest.mark.parametrize("op, arguments, error, message", CASES)
def test_message_and_nothing_written(op, arguments, error, message):
    untouched = torch.zeros(3)
    arguments = {"second": [untouched], **arguments}
    with pytest.raises(error, match=f"^{op}: expected {re.escape(message)}") as raised:
        run(op, **arguments)
    assert "Exception raised from" not in str(raised.value), "a C++ backtrace is in the message"
    assert untouched.tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_layouts_without_strides_are_refused_in_every_list():
    compressed = torch.ones(2, 2).to_sparse_csr()
    with pytest.raises(TypeError, match=r"^unscale: expected master_grads\[0\] to be dense, got"):
        ops.unscale([torch.ones(2, 2)], [compressed], ONE, torch.zeros(()))


@pytest.mark.parametrize(
    "argument, value, error, message",
    [
        ("loss_scale", torch.ones((), dtype=torch.float64), TypeError, "to be Float, got Double"),
        ("growth_tracker", torch.zeros(()), TypeError, "to be Int, got Float"),
        ("hysteresis_tracker", torch.ones(2, dtype=torch.int32), RuntimeError, "one element"),
        ("found_inf", torch.zeros((), device="meta"), RuntimeError, "to be on cpu, got meta"),
    ],
)
def test_update_scale(argument, value, error, message):
    arguments = {
        "loss_scale": torch.ones(()),
        "growth_tracker": torch.zeros((), dtype=torch.int32),
        "hysteresis_tracker": torch.ones((), dtype=torch.int32),
        "found_inf": torch.ones(()),
    }
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    with pytest.raises(error, match=f"^update_scale: expected {argument} .*{message}"):
        ops.update_scale(**{**arguments, argument: value})
    assert all(arguments[name].equal(tensor) for name, tensor in before.items())

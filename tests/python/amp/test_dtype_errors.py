"""Torch's errors about dtypes in a cast model say where they come from, and what to do."""

import sys

import pytest
import torch
from nets import backward, batch, initialized, train_step
from torch import nn

from torchamp import _C, amp

DTYPES = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")


class Block(nn.Module):
    """Runs `body` with its layer and input."""

    def __init__(self, body):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 4)
        self.body = body
        self.hidden = [nn.Linear(4, 4)]

    def forward(self, x):
        return self.body(self, x)


class Net(nn.Module):
    def __init__(self, body=lambda block, x: block.layer(x)):
        super().__init__()
        self.block = Block(body)

    def forward(self, x):
        return self.block(x)


MADE = (
    "torchamp: {!r} ({}) has got a tensor that is not in {{dtype}}; make tensors in forward in the "
    "dtype of an input x, as torch.zeros(3, dtype=x.dtype, device=x.device)"
)
#: float32's lowest number, which neither 16-bit format holds.
LOWEST = torch.finfo(torch.float32).min
KEPT = ", or initialize with keep_fp32={!r}"
LARGE = (
    "torchamp: 'block' (Block) computes in {dtype}, whose largest number is {largest:g}; write "
    "torch.finfo(x.dtype).min, of an input x, in the place of a number like -1e9, or initialize "
    "with keep_fp32='block'"
)
UNREGISTERED = (
    "torchamp: 'block' (Block) calls a Linear that initialize has not cast to {dtype}, because it "
    "is no submodule; assign it to an attribute or put it in a torch.nn.ModuleList, before "
    "initialize"
)
ADDED = (
    "torchamp: parameter 'weight' of 'block.layer' (Linear) is in torch.float32, in a model that "
    "initialize has cast to {dtype}; add or replace modules before initialize"
)


def made(name: str, kind: str) -> str:
    return MADE.format(name, kind) + KEPT.format(name)


#: What a forward does, what it should do, and the note.
CASES = {
    "made": (
        lambda block, x: block.layer(torch.ones(3, 4)),
        lambda block, x: block.layer(torch.ones(3, 4, dtype=x.dtype, device=x.device)),
        made("block.layer", "Linear"),
    ),
    "products": (
        lambda block, x: x @ torch.ones(4, 4),
        lambda block, x: x @ torch.ones(4, 4, dtype=x.dtype),
        made("block", "Block"),
    ),
    "recurrent": (
        lambda block, x: block.lstm(x.float())[0],
        lambda block, x: block.lstm(x)[0],
        made("block.lstm", "LSTM"),
    ),
    "unregistered": (
        lambda block, x: block.hidden[0](x),
        lambda block, x: block.layer(x),
        UNREGISTERED,
    ),
    "large": (
        lambda block, x: x.masked_fill(x > 0, LOWEST),
        lambda block, x: x.masked_fill(x > 0, torch.finfo(x.dtype).min),
        LARGE,
    ),
}


def note_of(model) -> str:
    """The one that an error in its forward has."""
    with pytest.raises((RuntimeError, ValueError)) as raised:
        model(batch()[0])
    (note,) = raised.value.__notes__
    return note


def expected(note: str, level: str) -> str:
    dtype = DTYPES[level]
    return note.format(dtype=dtype, largest=torch.finfo(dtype).max)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("level", DTYPES)
def test_notes_and_their_remedies(level, case):
    raises, remedied, note = CASES[case]
    assert note_of(initialized(level, Net(raises))[0]) == expected(note, level)
    model, _ = initialized(level, Net(remedied))
    assert model(batch()[0]).dtype == torch.float32


class PositionBias(nn.Module):
    """As x-transformers has it: positions are float32, whatever the model is."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, 4), nn.SiLU(), nn.Linear(4, 4))

    def forward(self, x):
        return x + self.mlp(torch.arange(len(x)).float()[:, None])


class RelationalConvolution(nn.Module):
    """As PyG's RGCNConv has it: what it sums up starts as zeros in float32."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x):
        out = torch.zeros(len(x), 4)
        for weight in self.weight:
            out = out + (torch.zeros(len(x), 4) + x.roll(1, 0)) @ weight
        return out


@pytest.mark.parametrize(
    "library, name, kind",
    [(PositionBias, "1.mlp.0", "Linear"), (RelationalConvolution, "1", "RelationalConvolution")],
)
@pytest.mark.parametrize("level", DTYPES)
def test_code_that_cannot_be_changed_is_kept_in_float32(level, library, name, kind):
    def net(**options):
        layers = nn.Sequential(nn.Linear(4, 4), library(), nn.Linear(4, 3))
        return initialized(level, layers, loss_scale=1.0, **options)

    assert note_of(net()[0]) == made(name, kind).format(dtype=DTYPES[level])
    model, optimizer = net(keep_fp32=name)
    before = [param.clone() for param in model.parameters()]
    train_step(model, optimizer)
    assert not any(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("level", DTYPES)
def test_a_module_without_a_kernel(level):
    def pooled(**options):
        net = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (1, 2, 1, 2)), nn.AvgPool3d((1, 1, 2)))
        return initialized(level, net, **options)[0]

    assert note_of(pooled()) == (
        f"torchamp: '2' (AvgPool3d) computes in {DTYPES[level]}, in which torch has no such kernel "
        "for the device; write op(x.float()).to(x.dtype) in its forward, or initialize with "
        "keep_fp32='2'"
    )
    assert pooled(keep_fp32="2")(batch()[0]).shape == (16, 1, 2, 1, 1)


@pytest.mark.parametrize("level", DTYPES)
def test_an_op_without_a_kernel_in_the_models_own_forward(level):
    class Decomposes(nn.Linear):
        def forward(self, x):
            return torch.linalg.qr(super().forward(x))[1]

    class Widens(nn.Linear):
        def forward(self, x):
            return torch.linalg.qr(super().forward(x).float())[1].to(x.dtype)

    assert note_of(initialized(level, Decomposes(4, 4))[0]) == (
        f"torchamp: the model (Decomposes) computes in {DTYPES[level]}, in which torch has no such "
        "kernel for the device; write op(x.float()).to(x.dtype) in its forward"
    )
    assert initialized(level, Widens(4, 4))[0](batch()[0]).isfinite().all()


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_under_autocast(level):
    dtype = {"O1": torch.float16, "O4": torch.bfloat16}[level]
    bodies = {
        "the op has got tensors of two dtypes, for which autocast to {} has no rule; cast one of "
        "them, as x.float()": (
            lambda block, x: torch.histogram(block.layer(x), torch.ones(3))[0],
            lambda block, x: torch.histogram(block.layer(x).float(), torch.arange(3.0))[0],
        ),
        "torch has no kernel in {} for this op on this device; write op(x.float())": (
            lambda block, x: torch.special.bessel_j0(block.layer(x)),
            lambda block, x: torch.special.bessel_j0(block.layer(x).float()),
        ),
        "the op computes in {}, which does not hold a number of this size; write "
        "torch.finfo(x.dtype).min, of the tensor x, in the place of a number like -1e9": (
            lambda block, x: block.layer(x).masked_fill(x > 0, LOWEST),
            lambda block, x: (y := block.layer(x)).masked_fill(x > 0, torch.finfo(y.dtype).min),
        ),
    }
    for note, (raises, remedied) in bodies.items():
        model, _ = initialized(level, Net(raises))
        assert note_of(model) == "torchamp: " + note.format(dtype) + KEPT.format("block")
        model.block.body = remedied
        model(batch()[0])
        amp.release(model)
        model, _ = initialized(level, Net(raises), keep_fp32="block")
        model(batch()[0])
        amp.release(model)


HALF, SINGLE = torch.ones(4, 4, dtype=torch.float16), torch.ones(4, 4)
BFLOAT = SINGLE.bfloat16()
#: An op for each of torch's wordings that it still has, and those of other versions and devices.
WORDINGS = {
    "no kernel": [
        lambda: torch.linalg.qr(HALF),
        lambda: torch.linalg.qr(BFLOAT),
        lambda: torch.linalg.inv(HALF),
        lambda: torch.fft.fft(BFLOAT),
        lambda: torch.linalg.pinv(HALF),
        lambda: HALF.quantile(0.5),
        lambda: torch.linalg.lstsq(HALF, HALF),
        lambda: torch.complex(BFLOAT, BFLOAT),
        lambda: torch.view_as_complex(BFLOAT[:, :2]),
        lambda: torch.linalg.vander(HALF[0]),
    ],
    "mixed": [
        lambda: torch.linalg.solve(HALF, SINGLE),
        lambda: SINGLE.index_add(0, torch.arange(4), HALF),
        lambda: torch.complex(HALF, SINGLE),
        lambda: torch.isclose(HALF, SINGLE),
        lambda: nn.functional.binary_cross_entropy(SINGLE, HALF),
        lambda: SINGLE.clone().index_put_((torch.arange(4),), HALF),
        lambda: SINGLE.scatter(0, torch.zeros(4, 4, dtype=torch.long), HALF),
        lambda: nn.functional.conv1d(HALF[None], SINGLE[:, :, None], SINGLE[0]),
        lambda: nn.functional.conv1d(HALF[None], SINGLE[:, :, None]),
        lambda: torch.linalg.householder_product(HALF, SINGLE[0]),
        lambda: nn.functional.prelu(HALF, SINGLE[0]),
        lambda: torch.heaviside(HALF, SINGLE),
        lambda: torch.baddbmm(HALF[None], SINGLE[None], SINGLE[None]),
        lambda: torch.lerp(HALF, SINGLE, 0.5),
        lambda: nn.LSTM(4, 4)(HALF),
        lambda: nn.Linear(4, 4)(HALF),
        lambda: nn.BatchNorm1d(4).half()(SINGLE),
        lambda: HALF @ SINGLE,
        lambda: torch.bmm(HALF[None], SINGLE[None]),
        lambda: torch.dot(HALF[0], SINGLE[0]),
        lambda: torch.sparse.mm(SINGLE.to_sparse(), HALF),
        "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the "
        "same",
        "Input type (CPUBFloat16Type) and weight type (torch.FloatTensor) should be the same",
    ],
    "overflow": [lambda: HALF.masked_fill(HALF > 0, -1e9)],
    "": [
        "Input type (torch.HalfTensor) and weight type (torch.cuda.HalfTensor) should be the same",
        "Expected all tensors to be on the same device, but found at least two devices",
    ],
}


@pytest.mark.parametrize("kind, op", [(kind, op) for kind, ops in WORDINGS.items() for op in ops])
def test_torchs_wordings_are_known(kind, op):
    words = op
    if callable(op):
        with pytest.raises((RuntimeError, ValueError)) as raised:
            op()
        words = str(raised.value)
    assert _C.dtype_error(words) == kind


@pytest.mark.parametrize("level", DTYPES)
def test_a_module_that_was_replaced(level):
    model, _ = initialized(level, Net())
    model.block.layer = nn.Linear(4, 4)
    assert note_of(model) == expected(ADDED, level)
    net = Net()
    net.block.layer = nn.Linear(4, 4)
    assert initialized(level, net)[0](batch()[0]).dtype == torch.float32


def test_kept_modules_are_not_called_added():
    model, _ = initialized("O2", Net(lambda block, x: block.layer(x.half())), keep_fp32="block")
    assert note_of(model) == MADE.format("block.layer", "Linear").format(dtype="torch.float32")


@pytest.mark.parametrize(
    "level, body",
    [
        ("O0", lambda block, x: x.double() @ torch.ones(4, 4)),
        ("O2", lambda block, x: x @ torch.ones(5, 4, dtype=x.dtype)),
    ],
)
def test_no_note_at_o0_and_on_other_errors(level, body):
    model, _ = initialized(level, Net(body))
    with pytest.raises(RuntimeError) as raised:
        model(batch()[0])
    assert not hasattr(raised.value, "__notes__")


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_a_parameter_that_a_forward_casts_is_named(level):
    def router(block, x):
        return block.layer.float()(x.float())

    model, optimizer = initialized(level, Net(router))
    with pytest.raises(RuntimeError, match="as initialize left it, got Float") as raised:
        backward(model, optimizer)
    assert raised.value.__notes__ == [
        "torchamp: parameter 'block.layer.weight' is in torch.float32; if a forward has cast it, "
        "initialize with keep_fp32='block.layer'"
    ]
    model, optimizer = initialized(level, Net(router), keep_fp32="block.layer")
    before = model.block.layer.weight.clone()
    train_step(model, optimizer)
    assert not torch.equal(model.block.layer.weight, before)
    amp.release(model)


@pytest.mark.parametrize("level", DTYPES)
def test_hooks_that_change_the_dtype_of_a_grad(level):
    model, optimizer = initialized(level, loss_scale=1.0)
    mask = torch.eye(*model.first.weight.shape)
    hook = model.first.weight.register_hook(lambda grad: grad * mask)
    with pytest.raises(RuntimeError, match="has changed the type of value") as caught:
        backward(model, optimizer)
    assert caught.value.__notes__ == [
        "torchamp: a hook of a tensor has to return its grad in the dtype that it came in, which "
        "is that of the tensor, and a mask or factor in float32 widens it; write "
        "mask.to(grad.dtype)"
    ]
    hook.remove()
    model.first.weight.register_hook(lambda grad: grad * mask.to(grad.dtype))
    backward(model, optimizer)
    grad = model.first.weight.grad
    assert torch.equal(grad * mask, grad) and grad.any()


@pytest.mark.parametrize("level", DTYPES)
def test_losses_whose_backward_takes_one_dtype(level):
    model, optimizer = initialized(level, cast_model_outputs=DTYPES[level])

    def scaled_backward(dtype):
        output = model(batch()[0])
        target = torch.zeros_like(output, dtype=dtype)
        amp.scale_loss(nn.functional.huber_loss(output, target), optimizer).backward()

    with pytest.raises(RuntimeError, match="Found dtype Float but expected") as caught:
        scaled_backward(torch.float32)
    assert caught.value.__notes__ == [
        "torchamp: an op of the forward has got tensors of two dtypes; cast one of them, as "
        "target.to(output.dtype)"
    ]
    scaled_backward(DTYPES[level])


def test_a_model_without_parameters_has_its_note_too():
    class Products(nn.Module):
        def forward(self, x):
            return x @ torch.ones(4, 4)

    model = amp.initialize(Products(), opt_level="O2", verbosity=0)
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(2, 4))
    assert caught.value.__notes__ == [
        "torchamp: the model (Products) has got a tensor that is not in torch.float16; make "
        "tensors in forward in the dtype of an input x, as torch.zeros(3, dtype=x.dtype, "
        "device=x.device)"
    ]

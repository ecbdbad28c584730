"""What amp.init and O1 make of modules, functions and methods, and which grads come back."""

import functools
import operator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from apex import amp
from apex.amp import _amp_state
from torch import nn

HALF, FLOAT = torch.float16, torch.float32
BATCH, WIDTH, CHANNELS = 16, 64, 16
PLANE, IMAGE = (BATCH, WIDTH), (BATCH, CHANNELS, 8, 8)


@pytest.fixture(autouse=True)
def handle():
    handle = amp.init(enabled=True)
    yield handle
    for opened in (handle, _amp_state.legacy_handle):
        if opened is not None:
            opened._deactivate()
    _amp_state.legacy_handle = None


def functional(function, module, *names, **options):
    """`function` with the module's own tensors."""
    return functools.partial(function, **{n: getattr(module, n) for n in names}, **options)


def cases():
    """name: (function, sizes of its input, the type of its result, or None for the input's)"""
    linear, conv = nn.Linear(WIDTH, WIDTH), nn.Conv2d(CHANNELS, CHANNELS, 3)
    norm, group_norm = nn.BatchNorm2d(CHANNELS), nn.GroupNorm(4, CHANNELS)
    statistics = ("running_mean", "running_var", "weight", "bias")
    target, other = torch.randn(PLANE), torch.randn(WIDTH, WIDTH)
    mse = nn.MSELoss()
    return {
        "Linear": (linear, PLANE, HALF),
        "linear": (functional(F.linear, linear, "weight", "bias"), PLANE, HALF),
        "Conv2d": (conv, IMAGE, HALF),
        "conv2d": (functional(F.conv2d, conv, "weight", "bias"), IMAGE, HALF),
        "matmul of it": (lambda x: x.matmul(other), (WIDTH, WIDTH), HALF),
        "matmul by it": (lambda x: other.matmul(x), (WIDTH, WIDTH), HALF),
        "it @": (lambda x: x @ other, (WIDTH, WIDTH), HALF),
        "@ it": (lambda x: other @ x, (WIDTH, WIDTH), HALF),
        "Softmax": (nn.Softmax(dim=1), PLANE, FLOAT),
        "softmax": (functools.partial(F.softmax, dim=1), PLANE, FLOAT),
        "GroupNorm": (group_norm, IMAGE, FLOAT),
        "MSELoss": (lambda x: mse(x, target), PLANE, FLOAT),
        "mse_loss": (functools.partial(F.mse_loss, target=target), PLANE, FLOAT),
        "pow": (lambda x: x.pow(2.0), PLANE, FLOAT),
        "**": (lambda x: x**2.0, PLANE, FLOAT),
        "sum": (lambda x: x.sum(), PLANE, FLOAT),
        "ReLU": (nn.ReLU(), PLANE, None),
        "relu": (F.relu, PLANE, None),
        "BatchNorm2d": (norm, IMAGE, None),
        "batch_norm": (functional(F.batch_norm, norm, *statistics, training=True), IMAGE, None),
        "batch_norm in eval": (functional(F.batch_norm, norm, *statistics), IMAGE, None),
        "BatchNorm2d in eval": (nn.BatchNorm2d(CHANNELS).eval(), IMAGE, None),
    }


@pytest.mark.parametrize("given", [HALF, FLOAT], ids=["half", "float"])
@pytest.mark.parametrize("name", cases())
def test_a_result_has_the_lists_type_and_a_grad_its_inputs(name, given):
    function, sizes, expected = cases()[name]
    x = torch.randn(sizes).to(given).requires_grad_()
    y = function(x)
    assert y.dtype == (given if expected is None else expected)
    y.float().sum().backward()
    assert x.grad.dtype == given and x.grad.isfinite().all()


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("form", ["BCELoss", "binary_cross_entropy"])
def test_binary_cross_entropy_of_half_is_refused_unless_allowed(form, allowed, handle):
    handle._deactivate()
    amp.init(enabled=True, allow_banned=allowed)
    target, x = torch.rand(PLANE), torch.rand(PLANE).half()
    loss = nn.BCELoss() if form == "BCELoss" else F.binary_cross_entropy
    if allowed:
        got = loss(x, target)
        assert got.dtype == FLOAT
        torch.testing.assert_close(got, -(x.float().log() * target).mean() - rest(x, target))
    else:
        with pytest.raises(NotImplementedError):
            loss(x, target)
        assert loss(x.float(), target).dtype == FLOAT


def rest(x, target):
    return ((1 - x.float()).log() * (1 - target)).mean()


# Promotion.

LOW = [HALF, torch.bfloat16]
WIDEST = {
    "atan2": [torch.atan2, torch.Tensor.atan2],
    "mul": [torch.mul, torch.Tensor.mul, operator.mul],
    "add": [torch.add, torch.Tensor.add, operator.add],
    "div": [torch.div, torch.Tensor.div, operator.truediv],
    "sub": [torch.Tensor.__sub__, torch.Tensor.__rsub__],
    "addcmul": [lambda x, y: torch.addcmul(x, x, y), lambda x, y: y.addcmul(x, y)],
    "dot": [torch.dot, torch.Tensor.dot],
}
IN_PLACE = ["add_", "sub_", "mul_", "div_", "atan2_"]


def pairs(low):
    return [(one, other) for one in (low, FLOAT) for other in (low, FLOAT)]


def operand(dtype):
    return (0.5 + torch.rand(BATCH)).to(dtype)


@pytest.fixture(params=LOW, ids=["half", "bfloat16"])
def low(request, handle):
    """The 16-bit type of the casts, as amp.init takes it."""
    handle._deactivate()
    amp.init(enabled=True, patch_type=request.param)
    return request.param


@pytest.mark.parametrize("name", WIDEST)
def test_two_types_meet_in_the_wider(name, low):
    for function in WIDEST[name]:
        for x_type, y_type in pairs(low):
            x, y = operand(x_type).requires_grad_(), operand(y_type)
            out = function(x, y)
            assert out.dtype == (FLOAT if FLOAT in (x_type, y_type) else low)
            out.float().sum().backward()
            assert x.grad.dtype == x_type


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_the_left_side_keeps_its_type(name, low):
    for x_type, y_type in pairs(low):
        leaf = operand(x_type).requires_grad_()
        x = leaf.clone()
        out = getattr(x, name)(operand(y_type))
        assert out is x and out.dtype == x_type
        out.float().sum().backward()
        assert leaf.grad.dtype == x_type


@pytest.mark.parametrize("join", [torch.cat, torch.stack])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_sequences_take_the_widest_of_all_their_tensors(join, place, low):
    tensors = [operand(low).requires_grad_() for _ in range(6)]
    assert join(tensors).dtype == join(tuple(tensors)).dtype == low
    tensors[place] = operand(FLOAT).requires_grad_()
    out = join(tensors)
    assert out.dtype == FLOAT
    out.sum().backward()
    assert [t.grad.dtype for t in tensors] == [t.dtype for t in tensors]


def test_a_float_function_in_place_is_an_error_for_low_precision_alone(low):
    x = operand(FLOAT)
    assert x.exp_() is x and x.dtype == FLOAT
    with pytest.raises(NotImplementedError):
        operand(low).exp_()


# Weights that training, evaluation and training use again.


class Used(nn.Module):
    """Uses its weight twice."""

    def __init__(self, operation, sizes, dtype):
        super().__init__()
        self.operation = operation
        numbers = torch.arange(float(sizes[0] * sizes[1])) % 11
        self.weight = nn.Parameter(numbers.view(sizes).to(dtype))

    def forward(self, x):
        return self.operation(x, self.weight)


USES = {
    "half": (lambda x, w: x.mm(w).mm(w).sum(), (8, 8)),
    "float": (lambda x, w: (x + w.pow(2) + torch.pow(w, 2)).sum(), (2, 8)),
    "widest": (lambda x, w: ((x * w) * w).sum(), (2, 8)),
}


@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=["half", "float"])
@pytest.mark.parametrize("use", USES)
def test_weights_are_cast_afresh_after_every_change(use, dtype, handle, monkeypatch):
    handle._deactivate()
    monkeypatch.setattr(_amp_state, "allow_incoming_model_not_fp32", True)
    operation, sizes = USES[use]
    model = Used(operation, sizes, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-12)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    x = torch.ones(2, 8)

    def expected():
        weight = model.weight.detach().float().requires_grad_()
        with amp.disable_casts():
            value = operation(x, weight)
        value.backward()
        return value.detach(), weight.grad

    def train():
        model.weight.grad = None
        value, grad = expected()
        loss = model(x)
        torch.testing.assert_close(loss.float(), value, rtol=2e-3, atol=0)
        _amp_state.loss_scalers[0]._loss_scale = 4.0
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        assert model.weight.grad.dtype == dtype
        torch.testing.assert_close(model.weight.grad.float(), grad, rtol=2e-3, atol=0)

    train()
    model.weight.data -= 1.0
    with torch.no_grad():
        for shift in (0.0, 1.0):
            model.weight.data += shift
            torch.testing.assert_close(
                model(x).float(), expected_value(operation, x, model), rtol=2e-3, atol=0
            )
    train()
    optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(
            model(x).float(), expected_value(operation, x, model), rtol=2e-3, atol=0
        )


def expected_value(operation, x, model):
    with amp.disable_casts():
        return operation(x, model.weight.detach().float())


# Recurrent modules.

STEPS = 10
CELLS = [nn.RNNCell, nn.GRUCell, nn.LSTMCell]
RNNS = {"rnn": functools.partial(nn.RNN, nonlinearity="relu"), "gru": nn.GRU, "lstm": nn.LSTM}


def hidden(kind, *sizes, dtype):
    state = torch.zeros(sizes, dtype=dtype)
    return (state, state.clone()) if kind in (nn.LSTMCell, "lstm") else state


@pytest.mark.parametrize("given", [HALF, FLOAT], ids=["half", "float"])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_give_half_and_grads_of_their_inputs_type(kind, given):
    cell = kind(WIDTH, WIDTH)
    inputs = [torch.randn(PLANE).to(given).requires_grad_() for _ in range(STEPS)]
    state, outputs = hidden(kind, *PLANE, dtype=given), []
    for x in inputs:
        state = cell(x, state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    assert {y.dtype for y in outputs} == {HALF}
    outputs[-1].float().sum().backward()
    assert all(x.grad.dtype == given and x.grad.any() for x in inputs)
    assert all(p.grad.dtype == FLOAT and p.grad.any() for p in cell.parameters())


@pytest.mark.parametrize("given", [HALF, FLOAT], ids=["half", "float"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("layers", "both_ways"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("kind", RNNS)
def test_sequences_give_half_and_grads_of_their_inputs_type(kind, layers, both_ways, packed, given):
    rnn = RNNS[kind](
        input_size=WIDTH, hidden_size=WIDTH, num_layers=layers, bidirectional=both_ways
    )
    x = torch.randn(STEPS, BATCH, WIDTH).to(given).requires_grad_()
    state = hidden(kind, layers * (1 + both_ways), BATCH, WIDTH, dtype=given)
    lengths = sorted((STEPS - i % 5 for i in range(BATCH)), reverse=True)
    given_x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths)) if packed else x
    out, _ = rnn(given_x, state)
    data = out.data if packed else out
    assert data.dtype == HALF
    (out.data if packed else out[-1]).float().sum().backward()
    assert x.grad.dtype == given and x.grad.any()
    assert all(p.grad.dtype == FLOAT for p in rnn.parameters())

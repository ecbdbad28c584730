"""Recurrent modules under O1 and O4: 16 bit inside, float32 weights and gradients."""

import contextlib

import pytest
import torch
from autocast.op_log import OpLog
from nets import initialized, sgd
from test_o1_ops import LEVELS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchamp import Amp, amp
from torchamp._load import _C

MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
OPTIONS = {
    "plain": {},
    "two layers both ways": {"num_layers": 2, "bidirectional": True},
    "batch first without bias": {"batch_first": True, "bias": False},
    "dropout": {"num_layers": 2, "dropout": 0.5},
}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}


def initialized_rnn(kind, level, device, **options) -> tuple:
    return initialized(level, kind(4, 6, **options), device=device)


def assert_trains(model, optimizer, loss) -> None:
    before = [p.detach().clone() for p in model.parameters()]
    amp.scale_loss(loss, optimizer).backward()
    assert all(p.grad.dtype == p.dtype == torch.float32 for p in model.parameters())
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    optimizer.step()
    assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("given", ["float32", "16 bit"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", MODULES)
def test_sequences(kind, options, given, level, device):
    model, optimizer = initialized_rnn(MODULES[kind], level, device, **OPTIONS[options])
    x = torch.randn(5, 3, 4, device=device)
    out, hidden = model(x if given == "float32" else x.to(LEVELS[level]))
    assert out.dtype == LEVELS[level]
    assert all(h.dtype == LEVELS[level] for h in hidden)
    assert_trains(model, optimizer, out.pow(2).mean())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", MODULES)
def test_packed_sequences(kind, level, device):
    model, optimizer = initialized_rnn(MODULES[kind], level, device, bidirectional=True)
    packed = pack_padded_sequence(torch.randn(5, 3, 4, device=device), [5, 3, 2])
    out, lengths = pad_packed_sequence(model(packed)[0])
    assert out.dtype == LEVELS[level] and lengths.tolist() == [5, 3, 2]
    assert_trains(model, optimizer, out.pow(2).mean())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", MODULES)
def test_values_are_near_those_of_float32(kind, level, device):
    model = MODULES[kind](4, 6, device=device)
    x = torch.randn(5, 3, 4, device=device)
    expected = model(x)[0]
    keeper = amp.initialize(model, sgd(model), opt_level=level, verbosity=0)
    torch.testing.assert_close(model(x)[0].float(), expected, rtol=0, atol=0.02)
    del keeper


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind, level, device):
    model, optimizer = initialized_rnn(CELLS[kind], level, device)
    hidden = None
    for step in torch.randn(4, 3, 4, device=device):
        hidden = model(step, hidden)
    out = hidden[0] if kind == "lstm" else hidden
    assert out.dtype == LEVELS[level]
    assert_trains(model, optimizer, out.pow(2).mean())


def test_projection_and_given_hidden_state(device):
    model, optimizer = initialized_rnn(nn.LSTM, "O1", device, proj_size=3)
    states = torch.zeros(1, 2, 3, device=device), torch.zeros(1, 2, 6, device=device)
    out, _ = model(torch.randn(5, 2, 4, device=device), states)
    assert out.dtype == torch.float16
    assert_trains(model, optimizer, out.pow(2).mean())


def test_weight_norm(device):
    model = nn.utils.parametrizations.weight_norm(nn.LSTM(4, 6, device=device), "weight_hh_l0")
    optimizer = sgd(model)
    with Amp(model, optimizer, verbosity=0):
        out, _ = model(torch.randn(5, 2, 4, device=device))
        assert out.dtype == torch.float16
        assert_trains(model, optimizer, out.pow(2).mean())


#: A GRU cannot be faked.
@pytest.mark.parametrize("name, gates", [("lstm", 4), ("rnn_tanh", 1), ("rnn_relu", 1)])
def test_those_of_cuda_are_cast_as_a_whole_at_o4(name, gates):
    """torch's own rules cast inside of them, and before cuDNN to float16."""
    without_cudnn = torch.backends.cudnn.flags(enabled=False)  # whose ops cannot be faked
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), without_cudnn:
        x, hidden = (torch.empty(size, device="cuda") for size in [(5, 3, 4), (1, 3, 6)])
        sizes = [(6 * gates, 4), (6 * gates, 6), (6 * gates,), (6 * gates,)]
        weights = [torch.empty(size, device="cuda") for size in sizes]
        states = [hidden, hidden] if name == "lstm" else hidden
        with contextlib.closing(_C.OpenAutocast(["cuda"], torch.bfloat16)), OpLog() as log:
            getattr(torch, name)(x, states, weights, True, 1, 0.0, True, False, False)
    are_casts = [op is torch.ops.aten._to_copy.default for op, _ in log.results]
    count = sum(are_casts)
    assert count > len(weights) and all(are_casts[:count])


def test_bfloat16_weights_are_flattened_where_cudnn_takes_them(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "cudnn_is_acceptable", lambda weight: True)
    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", lambda *args: given.append(args))
    monkeypatch.setattr("torch.backends.cudnn.rnn.get_cudnn_mode", lambda mode: mode)
    layer = nn.LSTM(4, 6, num_layers=2, bidirectional=True, proj_size=3)
    model, _ = initialized("O5", layer)
    weights, *sizes = given.pop()
    assert all(weight is param for weight, param in zip(weights, model.parameters()))
    assert sizes == [5, 4, "LSTM", 6, 3, 2, False, True] and given == []
    initialized("O2", nn.LSTM(4, 6))
    assert given == []

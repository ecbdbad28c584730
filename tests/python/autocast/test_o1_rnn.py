"""Recurrent modules under O1 and O4: 16 bit inside, float32 weights and gradients."""

import pytest
import torch
from nets import initialized, sgd
from test_o1_ops import LEVELS
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchamp import Amp, amp

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
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
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

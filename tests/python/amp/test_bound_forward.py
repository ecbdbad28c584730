"""A forward that a program binds to the model itself, before or after initialize."""

import copy
import pickle

import pytest
import torch
from nets import LEVELS, initialized
from torch import nn

from torchamp import amp


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)

    def doubled(self, x):
        return 2 * self.layer(x)


def make(level, before):
    model = Net()
    if before:
        model.forward = model.doubled
    model, optimizer = initialized(level, model)
    if not before:
        model.forward = model.doubled
    return model, optimizer


X = torch.ones(2, 4)
OUTPUTS = {"O1": torch.float16, "O4": torch.bfloat16}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_it_is_cast_as_the_classs(level, before):
    model, _ = make(level, before)
    with amp.disable_casts():
        wide = 2 * nn.functional.linear(X, *model.state_dict().values())
    assert model(X).dtype == OUTPUTS.get(level, torch.float32)
    assert torch.allclose(model(X).float(), wide, atol=0.05)
    for plain in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(plain) is Net and plain.forward.__self__ is plain
        assert torch.allclose(plain(X).float(), wide, atol=0.05)
    amp.release(model)
    assert model.forward.__self__ is model and torch.allclose(model(X), wide)


@pytest.mark.parametrize("level", LEVELS)
def test_it_may_call_the_earlier_one(level):
    model, _ = initialized(level, Net())
    earlier, once = model.forward, model(X)
    model.forward = lambda x: 2 * earlier(x)
    assert torch.equal(model(X), 2 * once)
    del model.forward
    assert torch.equal(model(X), once)


@pytest.mark.parametrize("before", [True, False])
def test_it_compiles(before):
    model, _ = make("O5", before)
    expected = model(X)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(X), expected)


class Counting(Net):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return self.layer(x)


def test_a_compiled_forward_may_set_attributes():
    model, _ = initialized("O5", Counting())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(X)
    assert model.calls == 3


def test_its_errors_have_notes():
    model, _ = initialized("O2", Net())
    model.forward = lambda x: model.layer(torch.ones(2, 4))
    with pytest.raises(RuntimeError) as caught:
        model(X)
    (note,) = caught.value.__notes__
    assert note.startswith(
        "torchamp: 'layer' (Linear) has got a tensor that is not in torch.float16; "
    )

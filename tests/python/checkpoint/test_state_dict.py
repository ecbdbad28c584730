"""model.state_dict() and load_state_dict() read and write the masters."""

import copy
import io

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, Net, initialized, loss_of, train_step
from torch import nn

from torchamp import amp

F32 = torch.float32


def masters(optimizer) -> list[torch.Tensor]:
    return list(amp.master_params(optimizer))


def trained(level: str, model=None):
    model, optimizer = initialized(level, model)
    for seed in range(2):
        train_step(model, optimizer, seed)
    return model, optimizer


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_it_gives_the_masters(level):
    model, optimizer = trained(level)
    state = model.state_dict()
    assert {t.dtype for t in state.values()} == {F32, torch.int64}
    assert list(state) == list(Net().state_dict())
    for (name, _), master in zip(model.named_parameters(), masters(optimizer)):
        assert torch.equal(state[name], master)


class Tied(nn.Module):
    """A weight, and a buffer, under two names."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.ones(20))
        self.register_buffer("same", self.table)

    def forward(self, x):
        return self.head(self.embedding(x)) * self.table


@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_names_of_one_tensor_share_memory(level):
    model, optimizer = initialized(level, Tied())
    earlier, file = model.state_dict(), io.BytesIO()
    amp.save(model, optimizer, file)
    file.seek(0)
    (saved,) = torch.load(file)["models"]
    for state in (nn.ModuleDict({"net": model}).state_dict(), saved):
        weight, head, table, same = (tensor.data_ptr() for tensor in state.values())
        assert weight == head and table == same
    assert table not in {tensor.data_ptr() for tensor in earlier.values()}


def test_safetensors_exchanges_files_with_plain_models(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer = initialized("O2", Tied())
    plain, path = Tied(), str(tmp_path / "model.safetensors")
    safetensors.save_model(plain, path)
    safetensors.load_model(model, path)
    assert torch.equal(masters(optimizer)[0], plain.head.weight)
    with torch.no_grad():
        masters(optimizer)[0].add_(1)
    safetensors.save_model(model, path)
    safetensors.load_model(plain, path)
    assert torch.equal(masters(optimizer)[0], plain.head.weight)


def test_submodules_and_prefixes():
    model, optimizer = trained("O2")
    assert torch.equal(model.first.state_dict()["weight"], masters(optimizer)[0])
    outer = nn.ModuleDict({"net": model})
    assert torch.equal(outer.state_dict()["net.first.weight"], masters(optimizer)[0])


def test_keep_vars_gives_the_parameters_themselves():
    model, _ = trained("O2")
    assert model.state_dict(keep_vars=True)["first.weight"] is model.first.weight


def test_extra_state_is_left_alone():
    class WithExtra(Net):
        def get_extra_state(self):
            return {"epoch": 3}

        def set_extra_state(self, state):
            self.epoch = state["epoch"]

    model, _ = trained("O2", WithExtra())
    model.load_state_dict(model.state_dict())
    assert model.state_dict()["_extra_state"] == {"epoch": 3} and model.epoch == 3


def test_loading_part_of_a_model():
    model, optimizer = trained("O2")
    before = masters(optimizer)[1].clone()
    model.load_state_dict({"first.weight": torch.full((8, 4), 1 / 3)}, strict=False)
    assert (masters(optimizer)[0] == 1 / 3).all() and torch.equal(masters(optimizer)[1], before)


def test_a_load_that_fails_leaves_masters_and_model_together():
    model, optimizer = trained("O2")
    with pytest.raises(RuntimeError, match="size mismatch for first.weight"):
        model.load_state_dict({**model.state_dict(), "first.weight": torch.ones(2, 2)})
    train_step(model, optimizer)
    for param, master in zip(model.parameters(), masters(optimizer)):
        assert torch.equal(param, master.to(param.dtype))


@torch.no_grad()
def write(entry, value):
    entry.copy_(value)


def write_data(entry, value):
    entry.data.copy_(value)


@pytest.mark.parametrize("write", [write, write_data])
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "O3"])
def test_what_is_written_to_entries_counts(level, write):
    """As in plain PyTorch, whose entries are the parameters: hand-written loaders and federated
    averaging write them."""
    model, optimizer = trained(level)
    value = torch.full_like(model.first.weight, 1 / 3, dtype=F32)
    rounded = value.to(model.first.weight.dtype)
    write(model.state_dict()["first.weight"], value)
    write(model.state_dict()["last.weight"], torch.zeros(3, 8))
    assert torch.equal(model.first.weight, rounded)
    assert torch.equal(model.state_dict()["first.weight"], value)
    write(model.state_dict()["first.weight"], -value)
    loss_of(model)
    assert torch.equal(model.first.weight, -rounded) and not model.last.weight.any()
    write(model.state_dict()["first.weight"], value)
    optimizer.param_groups[0].update(lr=0.0)
    train_step(model, optimizer)
    assert torch.equal(model.first.weight, rounded)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_what_is_written_to_the_model_wins_over_entries(level):
    model, optimizer = trained(level)
    for data in (lambda p: p.data, lambda p: p.detach()):
        entry = model.state_dict()["first.weight"]
        entry.data.zero_()
        data(model.first.weight).fill_(1 / 3)
        loss_of(model)
        assert (model.first.weight == torch.tensor(1 / 3).to(model.first.weight.dtype)).all()
        assert torch.equal(model.state_dict()["first.weight"], model.first.weight.float())


class Frozen16(Net):
    def __init__(self):
        super().__init__()
        self.first.to(torch.bfloat16).requires_grad_(False)

    def forward(self, x):
        return self.last(self.norm(self.first(x.bfloat16()).float()))


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_a_model_that_is_not_cast_keeps_its_own(level):
    model, _ = initialized(level, Frozen16(), lambda m: torch.optim.SGD(m.last.parameters(), 0.1))
    for _ in range(2):
        assert model.state_dict()["first.weight"].dtype == torch.bfloat16
        assert copy.deepcopy(model).first.weight.dtype == torch.bfloat16
    model.load_state_dict(model.state_dict(), assign=True)


@pytest.mark.parametrize("level", ["O0", "O4"])  # the JIT keeps code for one dtype
def test_a_model_that_is_not_cast_may_have_scripted_parts(level):
    model = Net()
    model.last = torch.jit.script(model.last)
    model, optimizer = initialized(level, model)
    train_step(model, optimizer)
    state = model.state_dict()
    assert list(state) == list(Net().state_dict())
    amp.save(model, optimizer, io.BytesIO())
    model.load_state_dict(state)


class Activation(nn.Module):
    def forward(self, x):
        return torch.relu(x)


@pytest.mark.parametrize("level", LEVELS)
def test_scripted_parts_without_tensors_of_their_own(level):
    model = Net()
    model.norm = nn.Sequential(model.norm, torch.jit.script(Activation()))
    model, optimizer = initialized(level, model)
    train_step(model, optimizer)
    model.load_state_dict(model.state_dict())
    amp.save(model, optimizer, io.BytesIO())

"""The option float8: what fits, what is logged, and errors, which change nothing."""

import logging

import pytest
import torch
from nets import initialized, sgd
from products import LEVELS, Blocks, counted, in_float8
from torch import nn

from torchamp import amp


class Model(nn.Module):
    """Small stand-ins for the linears of a language model, whose weights share memory."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(1056, 1024)
        self.places = nn.Embedding(16, 1024)
        self.up = self._linear(1024, 2048)
        self.odd = self._linear(1024, 1030)
        self.small = self._linear(1024, 512)
        self.down = self._linear(2048, 1024)
        self.head = self._linear(1024, 1056)
        if tied:
            self.head.weight = self.words.weight

    def _linear(self, inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False)


def log_of(caplog, level: str, model: nn.Module, float8) -> str:
    with caplog.at_level(logging.INFO, logger="torchamp"):
        caplog.clear()
        amp.initialize(model, opt_level=level, float8=float8)
    (line,) = [r.message for r in caplog.records if r.message.startswith("float8")]
    return line


def chosen(model: nn.Module) -> list[str]:
    """The linears that compute in float8."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            x = torch.zeros(1, module.in_features, dtype=module.weight.dtype)
            if counted(lambda x=x, module=module: module(x))[1]:
                found.append(name)
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_true_takes_large_linears_but_the_last_and_embeddings(level, caplog):
    tied = Model()
    assert log_of(caplog, level, tied, True) == (
        "float8: 2 of 6 linears, 4.19 M of 6.87 M parameters; not: words (embedding), places "
        "(embedding), odd ([1030, 1024]), small ([512, 1024])"
    )
    assert chosen(tied) == ["up", "down"]
    model = Model(tied=False)
    assert log_of(caplog, level, model, True).endswith("small ([512, 1024]) and 1 more")
    assert chosen(model) == ["up", "down"]


@pytest.mark.parametrize("level", LEVELS)
def test_names_take_linears_of_any_size(level, caplog):
    model = Blocks()
    assert log_of(caplog, level, model, ["ff"]) == (
        "float8: 2 of 3 linears, 0.00307 M of 0.00332 M parameters"
    )
    assert chosen(model) == ["ff.0", "ff.2"]
    model = Model()
    assert log_of(caplog, level, model, ("small", "head")).startswith("float8: 2 of 5 linears")
    assert chosen(model) == ["small", "head"]
    models = [Blocks(), Blocks()]
    amp.initialize(models, opt_level=level, float8=["ff.0"], verbosity=0)
    assert [chosen(each) for each in models] == [["ff.0"], ["ff.0"]]


@pytest.mark.parametrize("level", LEVELS)
def test_what_stays_in_float32_is_not_in_float8(level, caplog):
    model = Model()
    with caplog.at_level(logging.INFO, logger="torchamp"):
        amp.initialize(model, opt_level=level, float8=True, keep_fp32=["up"])
    assert "up (keep_fp32)" in caplog.text
    model = Blocks()
    model, _ = initialized(level, model, float8=["ff"], keep_fp32=["ff.0"])
    assert counted(lambda: model(torch.randn(2, 32)))[1] == 1


@pytest.mark.parametrize("level", LEVELS)
def test_false_is_the_default_and_changes_nothing(level):
    model, _ = initialized(level, Blocks())
    other = Blocks()
    other.load_state_dict(model.state_dict())
    other, _ = initialized(level, other, float8=False)
    x = torch.randn(2, 32)
    assert torch.equal(model(x), other(x)) and chosen(model) == chosen(other) == []


NO_TYPE = "initialize: expected float8 to be True, False or a list of modules' names, got "
NO_NAME = "initialize: expected float8 to name modules"
NO_LINEAR = f"{NO_NAME} with linears whose dimensions are multiples of 16, got "
#: languages/mistakes.py has what both languages may be given.
WRONG = [
    ("O5", "ff", TypeError, f"{NO_TYPE}'ff'"),
    ("O5", 3, TypeError, f"{NO_TYPE}3"),
    ("O5", ["ff", 1], TypeError, f"{NO_TYPE}['ff', 1]"),
    ("O5", [], ValueError, f"{NO_NAME}, got no names"),
    ("O4", [""], ValueError, f'{NO_NAME} in the model, got ""'),
    ("O5", ["ff.1"], ValueError, f'{NO_LINEAR}"ff.1" with none'),
]


@pytest.mark.parametrize("level, value, kind, message", WRONG)
def test_wrong_values_change_nothing(level, value, kind, message):
    model = Blocks()
    optimizer = sgd(model)
    state = {name: (each.dtype, each.data_ptr()) for name, each in model.named_parameters()}
    with pytest.raises(kind) as raised:
        amp.initialize(model, optimizer, opt_level=level, float8=value, verbosity=0)
    assert str(raised.value) == message
    assert type(model) is Blocks and not hasattr(optimizer, "_torchamp")
    assert state == {name: (each.dtype, each.data_ptr()) for name, each in model.named_parameters()}
    assert not torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()


def test_models_in_float16_are_refused():
    with pytest.raises(RuntimeError) as raised:
        amp.initialize(Blocks(), opt_level="O5", float8=True, cast_model_type=torch.float16)
    assert str(raised.value) == (
        "initialize: float8 cannot be set at opt_level O5: only products in bfloat16 are computed "
        "in it, and others are chosen"
    )


def test_dtensors_are_refused(one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Blocks()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=amp.fsdp_policy("O5"))
    message = (
        "initialize: expected a model without DTensors for float8, got parameter 'ff.0.weight', "
        "one of them; leave float8 out"
    )
    with pytest.raises(RuntimeError) as raised:
        amp.initialize(model, opt_level="O5", float8=["ff"], verbosity=0)
    assert str(raised.value) == message


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layer", ["ff.0", "ff.2"])
@pytest.mark.parametrize("where", ["input", "grad"])
def test_a_skipped_step_names_the_first_product(level, layer, where, caplog):
    model, optimizer = in_float8(level, Blocks(), loss_scale="dynamic", verbosity=1)
    module = model.get_submodule(layer)

    def plant(tensor):
        tensor = tensor.clone()
        tensor[0, 3] = float("inf")
        return tensor

    if where == "input":
        handle = module.register_forward_pre_hook(lambda module, args: (plant(args[0]),))
    else:
        handle = module.register_full_backward_pre_hook(lambda module, grads: (plant(grads[0]),))
    before = [p.clone() for p in model.parameters()]

    def logged_by_a_step() -> list[str]:
        caplog.clear()
        optimizer.zero_grad()
        with caplog.at_level(logging.INFO, logger="torchamp"):
            loss = model(torch.randn(4, 32)).float().pow(2).sum()
            amp.scale_loss(loss, optimizer).backward()
            optimizer.step()
        return caplog.messages

    what = "input" if where == "input" else "grad of the output"
    event = "loss 0 is not finite" if where == "input" else "gradient overflow in loss 0"
    start = f"{event}: float8: the {what} of {layer} was not finite: step skipped, loss scale"
    (line,) = logged_by_a_step()
    assert line.startswith(start)
    assert all(map(torch.equal, before, model.parameters()))
    handle.remove()
    assert logged_by_a_step() == []
    assert not all(map(torch.equal, before, model.parameters()))

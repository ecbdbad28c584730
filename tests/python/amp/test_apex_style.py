"""apex.amp's functions: signatures, return values, and which initialize they refer to. Those of the
others are in compat/test_apex_table.py."""

import inspect
import io
import re

import pytest
import torch
from nets import Net, backward, initialized, linear_net, loss_of, overflow_at, sgd

from torchamp import Amp, amp

SIGNATURES = {
    "initialize": "models, optimizers=None, enabled=True, opt_level=None, cast_model_type=None, "
    "patch_torch_functions=None, keep_batchnorm_fp32=None, master_weights=None, loss_scale=None, "
    "cast_model_outputs=None, num_losses=1, verbosity=1, min_loss_scale=None, "
    "max_loss_scale=16777216.0",
    "scale_loss": "loss, optimizers, loss_id=0, model=None, delay_unscale=None, "
    "delay_overflow_check=False",
}
#: Options of initialize that apex lacks.
ADDED = [
    "adopt_data_writes",
    "materialize_master_grads",
    "max_consecutive_skips",
    "float8",
    "keep_fp32",
    "process_group",
]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(amp, name)).parameters.values()
    apex_s = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in apex_s]
    assert ", ".join(str(p) for p in plain) == SIGNATURES[name]
    added = [p.name for p in parameters if p not in apex_s]
    assert added == (ADDED if name == "initialize" else [])


@pytest.mark.parametrize("enabled", [True, False])
def test_what_initialize_returns(enabled):
    def call(*arguments):
        return amp.initialize(*arguments, enabled=enabled, opt_level="O2", verbosity=0)

    model, models = Net(), [Net(), Net()]
    assert call(model) is model
    assert call(models) is models
    model = Net()
    optimizer = sgd(model)
    assert call(model, optimizer) == (model, optimizer)
    model = Net()
    optimizers = [sgd(model)]
    pair = call([model], optimizers)
    assert pair[0] == [model] and pair[1] is optimizers
    assert call(Net(), [])[1] == []
    assert isinstance(call(Net(), None), Net)


def test_positional_arguments_are_apex_s():
    model = Net()
    amp.initialize(model, sgd(model), True, "O2", None, None, False, True, 64.0, None, 2, 0)
    assert model.norm.weight.dtype == torch.float16
    assert [e["loss_scale"] for e in amp.state_dict().values()] == [64.0, 64.0]


def test_disabled():
    model = linear_net()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, enabled=False, opt_level="nonsense")
    loss = torch.ones(())
    with amp.scale_loss(loss, None) as given:
        assert given is loss
    loss = loss_of(model).half()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
    assert list(amp.master_params(optimizer)) == list(model.parameters())
    assert amp.state_dict() == {}
    amp.load_state_dict({"loss_scaler0": {}})
    amp.refresh_masters(optimizer)
    assert type(model) is torch.nn.Sequential and type(optimizer) is torch.optim.SGD


def test_disabled_and_enabled_side_by_side():
    off, on = linear_net(), linear_net()
    off_optimizer, on_optimizer = sgd(off), sgd(on)
    amp.initialize(off, off_optimizer, enabled=False)
    amp.initialize(on, on_optimizer, opt_level="O2", verbosity=0)
    loss = loss_of(off)
    with amp.scale_loss(loss, off_optimizer) as scaled_loss:
        assert scaled_loss is loss
    with amp.scale_loss(loss_of(on), on_optimizer) as scaled_loss:
        assert scaled_loss > 1000
    own = Amp(linear_net(), opt_level="O1", verbosity=0)
    message = (
        "scale_loss: expected optimizers[0] to be an optimizer that initialize returned, got an "
        "SGD that it did not; pass it to initialize with its model"
    )
    with pytest.raises(RuntimeError, match=re.escape(message)), own:
        own.scale_loss(loss, off_optimizer)


@pytest.mark.parametrize(
    "call",
    [
        amp.finish,
        amp.refresh_masters,
        lambda given: amp.clip_grad_norm_(given, 1.0),
        lambda given: amp.clip_grad_value_(given, 1.0),
        lambda given: amp.save([], given, io.BytesIO()),
        lambda given: amp.load([], given, io.BytesIO()),
    ],
    ids=["finish", "refresh_masters", "clip_grad_norm_", "clip_grad_value_", "save", "load"],
)
def test_an_error_names_the_function(call, request):
    function = request.node.callspec.id
    model, optimizer = initialized("O2")
    with pytest.raises(RuntimeError, match=rf"^{function}: expected optimizers\[0\] to be an opt"):
        call(sgd(model))
    with pytest.raises(RuntimeError, match=rf"^{function}: expected optimizers\[1\] to come from"):
        call([optimizer, initialized("O2")[1]])


def test_an_error_about_loss_id_names_the_function():
    model, optimizer = initialized("O2")
    with pytest.raises(
        IndexError, match="^scale: expected loss_id to be below num_losses, 1, got 1"
    ):
        amp.scale(loss_of(model), loss_id=1)
    with pytest.raises(TypeError, match="^finish: expected loss_id to be an integer, got 'a'"):
        amp.finish(optimizer, loss_id="a")


def test_finish_without_optimizers_updates_the_scale_of_the_last_initialize():
    kept = initialized("O2", loss_scale="dynamic")
    amp.finish([])
    del kept
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 1


def test_no_optimizers_means_the_last_initialize():
    model, optimizer = initialized("O2", loss_scale=32.0)
    with amp.scale_loss(torch.ones(()), []) as scaled_loss:
        assert scaled_loss == 32
    del model, optimizer


def test_two_initializes_do_not_know_each_other():
    one, other = initialized("O2", linear_net()), initialized("O5", linear_net())
    with overflow_at(one[0][0].weight):
        backward(*one)
    backward(*other)
    assert one[1]._torchamp.session.scalers[0].loss_scale() == 2.0**15
    assert other[1]._torchamp.session.scalers[0].loss_scale() == 1.0
    before = [p.detach().clone() for p in (*one[0].parameters(), *other[0].parameters())]
    one[1].step()
    other[1].step()
    after = [*one[0].parameters(), *other[0].parameters()]
    same = [torch.equal(a, b) for a, b in zip(after, before)]
    assert all(same[:4]) and not any(same[4:])


def test_state_dict_speaks_of_the_last_initialize():
    one, other = initialized("O2", loss_scale=2.0), initialized("O2", loss_scale=4.0)
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 4.0
    del one, other


def test_master_params_of_any_optimizer():
    model = linear_net()
    generator = amp.master_params(sgd(model))
    assert inspect.isgenerator(generator) and list(generator) == list(model.parameters())


def test_an_object_of_our_own():
    model = linear_net()
    optimizer = sgd(model)
    owner = Amp(model, optimizer, opt_level="O2", verbosity=0)
    assert owner.models == [model] and owner.optimizers == [optimizer]
    assert [scaler.loss_scale() for scaler in owner.loss_scalers] == [65536.0]
    with owner.scale_loss(loss_of(model)) as scaled_loss:
        scaled_loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in owner.master_params())
    optimizer.step()
    model[0].weight.data.fill_(1)
    owner.refresh_masters()
    assert (next(owner.master_params()) == 1).all()
    with pytest.raises(RuntimeError, match="from the same initialize as the others"):
        owner.scale_loss(loss_of(model), initialized("O2")[1])


def test_an_object_of_our_own_disabled():
    model = linear_net()
    owner = Amp(model, sgd(model), enabled=False)
    loss = torch.ones(())
    with owner.scale_loss(loss, "any") as given:
        assert given is loss
    loss = loss_of(model)
    with owner, owner.scale_loss(loss) as scaled_loss:
        assert scaled_loss is loss
    assert owner.loss_scalers == [] and owner.state_dict() == {}
    owner.load_state_dict({})
    owner.refresh_masters()

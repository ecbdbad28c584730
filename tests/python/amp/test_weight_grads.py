"""Weight grads that accumulate in float32, in the GEMM."""

import pickle

import pytest
import torch
from nets import batch, initialized, linear_net
from torch import nn

from torchamp import amp, optimizers


def nets(dtype):
    """The same net twice; the second accumulates."""
    torch.manual_seed(1)
    plain = linear_net().to(dtype)
    other = linear_net().to(dtype)
    other.load_state_dict(plain.state_dict())
    return plain, amp.accumulate_weight_grads(other)


def backward(net, seed, dtype, sizes=(16, 4)):
    x = batch(seed)[0].to(dtype).reshape(sizes).requires_grad_()
    out = net(x)
    out.float().square().sum().backward()
    return x.grad, out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sizes", [(16, 4), (2, 8, 4), (2, 2, 4, 4)])
def test_all_but_the_weights_grads_are_as_ever(dtype, sizes):
    plain, other = nets(dtype)
    for theirs, ours in zip(backward(plain, 0, dtype, sizes), backward(other, 0, dtype, sizes)):
        torch.testing.assert_close(ours, theirs)
    for name, param in other.named_parameters():
        expected = plain.get_parameter(name).grad
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert param.grad.dtype == (dtype if name.endswith("bias") else wide)
        torch.testing.assert_close(param.grad.to(dtype), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_those_of_float32(dtype):
    _, net = nets(dtype)
    layer = net[0]
    exact = torch.zeros(layer.weight.shape, dtype=torch.float64)
    for seed in range(8):
        x = batch(seed)[0].to(dtype)
        grad = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)
        layer(x).backward(grad)
        exact += grad.double().T @ x.double()
    torch.testing.assert_close(layer.weight.grad.double(), exact, rtol=1e-5, atol=1e-5)


def test_earlier_grads_are_accumulated():
    plain, other = nets(torch.float16)
    before = torch.full_like(plain[0].weight, 3.0)
    for net in (plain, other):
        net[0].weight.grad = before.clone()
        backward(net, 0, torch.float16)
    torch.testing.assert_close(other[0].weight.grad.half(), plain[0].weight.grad)


def test_without_bias():
    layer = amp.accumulate_weight_grads(nn.Linear(3, 2, bias=False))
    layer(torch.ones(4, 3)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((2, 3), 4.0))


def test_frozen_weights_get_none():
    _, net = nets(torch.float32)
    net[0].weight.requires_grad_(False)
    backward(net, 0, torch.float32)
    assert net[0].weight.grad is None and net[2].weight.grad is not None


def test_a_weight_that_is_shared_gets_both_grads():
    plain, other = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(2))
    other.load_state_dict(plain.state_dict())
    amp.accumulate_weight_grads(other)
    for net in (plain, other):
        net[2].weight = net[0].weight
        net[2].bias = net[0].bias
        backward(net, 0, torch.float32)
    torch.testing.assert_close(other[0].weight.grad, plain[0].weight.grad)


def test_grads_of_grads_are_autograds():
    plain, other = nets(torch.float64)
    for net in (plain, other):
        x = batch(0)[0].double()
        weight = net[0].weight
        (grad,) = torch.autograd.grad(net(x).square().sum(), weight, create_graph=True)
        grad.square().sum().backward(inputs=[net[2].bias])
    torch.testing.assert_close(other[2].bias.grad, plain[2].bias.grad)


def test_under_autocast():
    plain, other = nets(torch.float32)
    x = batch(0)[0]
    for net in (plain, other):
        with torch.autocast("cpu", torch.bfloat16):
            out = net(x)
            assert out.dtype == torch.bfloat16
            out.float().square().sum().backward()
    torch.testing.assert_close(other[0].weight.grad, plain[0].weight.grad, rtol=2e-2, atol=1e-1)


@pytest.mark.parametrize("make", ["fused", "torch"])
@pytest.mark.parametrize("level", ["O2", "O5", "O1"])
def test_micro_batches_of_one_scale(level, make):
    """The rounding of 16-bit sums is visible in the masters' grads."""
    maker = {
        "fused": lambda model: optimizers.FusedSGD(model.parameters(), 0.1),
        "torch": lambda model: torch.optim.SGD(model.parameters(), 0.1),
    }[make]
    torch.manual_seed(3)
    model, optimizer = initialized(level, linear_net(), maker, loss_scale=1.0)
    amp.accumulate_weight_grads(model)
    exact = torch.zeros(model[0].weight.shape, dtype=torch.float64)
    for seed in range(6):
        x = batch(seed)[0].requires_grad_()
        captured = []
        hook = model[0].register_full_backward_pre_hook(
            lambda layer, grads, found=captured: found.append(grads[0])
        )
        loss = model(x).square().mean() * 2.0**seed
        with amp.scale_loss(loss, optimizer, delay_unscale=seed < 5) as scaled_loss:
            scaled_loss.backward()
        hook.remove()
        exact += captured[0].double().T @ x.detach().to(captured[0].dtype).double()
    master = list(amp.master_params(optimizer))[0]
    torch.testing.assert_close(master.grad.double(), exact, rtol=2e-5, atol=1e-6)
    optimizer.step()


def test_training_is_unchanged():
    losses = []
    for accumulates in (False, True):
        torch.manual_seed(5)
        model, optimizer = initialized("O2", linear_net(), loss_scale="dynamic")
        if accumulates:
            amp.accumulate_weight_grads(model)
        for seed in range(20):
            optimizer.zero_grad()
            x, target = batch(seed)
            loss = nn.functional.cross_entropy(model(x), target)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_models_pickle_and_keep_their_names():
    _, net = nets(torch.float32)
    copied = pickle.loads(pickle.dumps(net))
    assert isinstance(copied[0], nn.Linear) and list(copied.state_dict()) == list(net.state_dict())
    backward(copied, 0, torch.float32)


def test_subclasses_stay():
    class Own(nn.Linear):
        pass

    model = amp.accumulate_weight_grads(nn.Sequential(Own(2, 2)))
    assert type(model[0]) is Own


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda f: f(torch.ones(2, 3), torch.ones(4, 5)),
            RuntimeError,
            r"\[out_features, 3\], got",
        ),
        (lambda f: f(torch.ones(2, 3).int(), torch.ones(4, 3)), TypeError, "floating-point"),
    ],
)
def test_wrong_arguments(call, error, message):
    from torchamp._load import _C

    with pytest.raises(error, match="^linear: expected.*" + message):
        call(_C.linear)

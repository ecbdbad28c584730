"""register_half_function and related functions, and banned functions."""

import types

import pytest
import torch
from test_o1_functions import FLOAT32, HALF, LEVELS, ones, opened, types_of
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torchamp import amp
from torchamp.amp._casts import autocast as _autocast

BANNED = (
    "binary_cross_entropy: expected float32 tensors, got 16-bit ones, whose gradients may overflow "
    "under O1 and O4; leave out the sigmoid before it and use binary_cross_entropy_with_logits "
    "(BCEWithLogitsLoss), or cast its arguments to float32"
)


@pytest.fixture
def registered():
    """Removes a test's registrations."""
    before = list(_autocast.OPEN._patches)
    yield
    assert not _autocast.OPEN._holders, "the test left O1 open"
    _autocast.OPEN._patches[:] = before


def test_registered_builtins_have_their_way(registered):
    amp.register_float_function(torch, "matmul")
    amp.register_half_function(torch, "exp")
    amp.register_float_function(torch, "sigmoid")
    amp.register_half_function(torch, "einsum")
    originals = torch.matmul, torch.exp, torch.sigmoid, torch.einsum
    with opened():
        assert torch.matmul(ones(HALF), ones(FLOAT32)).dtype == FLOAT32
        assert torch.exp(ones(FLOAT32)).dtype == HALF
        assert torch.sigmoid(ones(HALF)).dtype == nn.Sigmoid()(ones(HALF)).dtype == FLOAT32
        assert torch.einsum("ij,jk->ik", ones(FLOAT32), ones(HALF)).dtype == HALF
    assert (torch.matmul, torch.exp, torch.sigmoid, torch.einsum) == originals


def test_registered_tensor_methods(registered):
    amp.register_float_function(torch.Tensor, "matmul")
    amp.register_half_function(torch.Tensor, "softmax")
    with opened():
        assert ones(HALF).matmul(ones(HALF)).dtype == FLOAT32
        assert ones(FLOAT32).softmax(0).dtype == HALF
    assert "matmul" not in vars(torch.Tensor)


def test_registered_functions_of_functional(registered):
    amp.register_float_function(F, "embedding")
    amp.register_half_function(F, "layer_norm")
    with opened():
        assert F.embedding(torch.tensor([0]), ones(HALF)).dtype == FLOAT32
        assert nn.LayerNorm(2)(ones(FLOAT32)).dtype == HALF


def test_registered_methods_of_a_class(registered):
    class Loss:
        def method(self, x):
            return self, x.dtype

        @staticmethod
        def static(x):
            return x.dtype

        @classmethod
        def of_class(cls, x):
            return cls, x.dtype

    class Child(Loss):
        pass

    for name in ("method", "static", "of_class"):
        amp.register_float_function(Loss, name)
    loss, child = Loss(), Child()
    for name in ("method", "static", "of_class"):
        amp.register_half_function(child, name)
    with opened():
        assert loss.method(ones(HALF)) == (loss, FLOAT32)
        assert Loss.static(ones(HALF)) == loss.static(ones(HALF)) == FLOAT32
        assert loss.of_class(ones(HALF)) == (Loss, FLOAT32)
        assert Child.of_class(ones(HALF)) == (Child, FLOAT32)
        assert child.static(ones(FLOAT32)) == FLOAT32, "the class's is inside of the object's"
    assert loss.static(ones(HALF)) == HALF and Child.of_class(ones(HALF)) == (Child, HALF)
    assert "method" not in vars(child)


def test_registered_apply_of_an_autograd_function(registered):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    class Triple(Double):
        @staticmethod
        def forward(ctx, x):
            return (x @ x) * 3

    amp.register_float_function(Double, "apply")
    x = ones(HALF).requires_grad_()
    with opened():
        out = Double.apply(x)
        out.sum().backward()
        tripled = Triple.apply(ones(FLOAT32))
    assert torch.equal(tripled, 3 * ones(HALF) @ ones(HALF)), "another's forward, or not cast"
    assert tripled.dtype == HALF and out.dtype == FLOAT32 and x.grad.dtype == HALF
    assert Double.apply(ones(HALF)).dtype == HALF and "apply" not in vars(Double)


def test_a_later_registration_replaces_an_earlier_one(registered):
    module = types.SimpleNamespace(f=types_of)
    for _ in range(2):
        amp.register_half_function(module, "f")
        amp.register_float_function(module, "f")
    with opened():
        assert module.f(ones(HALF)) == [FLOAT32]
        amp.register_half_function(module, "f")
        assert module.f(ones(FLOAT32)) == [HALF], "while it is open too"
    assert module.f is types_of


def test_what_was_replaced_meanwhile_stays(registered):
    module = types.SimpleNamespace(f=types_of)
    amp.register_half_function(module, "f")
    with opened():
        module.f = len
    assert module.f is len


def test_a_function_that_has_gone_is_skipped(registered):
    module = types.SimpleNamespace(f=types_of)
    amp.register_half_function(module, "f")
    del module.f
    with opened():
        assert not hasattr(module, "f")


@pytest.mark.parametrize("kind", ["half", "float", "promote", "bfloat16"])
def test_a_missing_name_is_refused(kind, registered):
    register = getattr(amp, f"register_{kind}_function")
    with pytest.raises(ValueError) as caught:
        register(types.SimpleNamespace, "einsumm")
    assert str(caught.value) == (
        f"register_{kind}_function: expected the name of a function in <class "
        "'types.SimpleNamespace'>, got 'einsumm'"
    )


def test_registrations_serve_every_later_initialize(registered):
    module = types.SimpleNamespace(f=types_of)
    amp.register_half_function(module, "f")
    for _ in range(3):
        with opened(), opened():
            assert module.f(ones(FLOAT32)) == [HALF]
        assert module.f is types_of


@pytest.mark.parametrize("level", LEVELS)
def test_binary_cross_entropy_of_16_bit_is_banned(level, device):
    original = F.binary_cross_entropy
    with opened(level, device):
        low, full = 0.5 * ones(LEVELS[level], device), 0.5 * ones(FLOAT32, device)
        for args in [(low, full), (full, low), (low, low)]:
            for loss in (F.binary_cross_entropy, nn.BCELoss()):
                with pytest.raises(NotImplementedError) as caught:
                    loss(*args)
                assert str(caught.value) == BANNED
        assert nn.BCELoss()(full, full).dtype == FLOAT32
        with amp.disable_casts():
            assert F.binary_cross_entropy(low, low).dtype == LEVELS[level]
    assert F.binary_cross_entropy is original

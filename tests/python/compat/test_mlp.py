"""apex.mlp."""

import copy

import pytest
import torch
from apex.mlp import MLP
from torch import nn

from torchamp import Amp

ACTIVATIONS = {"none": nn.Identity(), "relu": nn.ReLU(), "sigmoid": nn.Sigmoid()}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_is_linear_layers_and_activations(activation, bias, device):
    mlp = MLP([4, 8, 3], bias=bias, activation=activation).to(device)
    layers = [nn.Linear(4, 8, bias=bias), nn.Linear(8, 3, bias=bias)]
    for i, layer in enumerate(layers):
        layer.weight = getattr(mlp, f"weight_{i}")
        layer.bias = getattr(mlp, f"bias_{i}") if bias else None
    act = ACTIVATIONS[activation]
    x = torch.randn(5, 4, device=device)
    torch.testing.assert_close(mlp(x), act(layers[1](act(layers[0](x)))))


def test_an_mlps_parameters_have_apexs_names_and_spread():
    mlp = MLP([4, 2000, 3])
    assert list(mlp.state_dict()) == ["weight_0", "bias_0", "weight_1", "bias_1"]
    assert mlp.weight_0.std().item() == pytest.approx((2 / 2004) ** 0.5, rel=0.1)
    assert mlp.bias_0.std().item() == pytest.approx((1 / 2000) ** 0.5, rel=0.1)
    assert list(MLP([4, 3], bias=False).state_dict()) == ["weight_0"]
    assert mlp.weights == [mlp.weight_0, mlp.weight_1] and mlp.biases == [mlp.bias_0, mlp.bias_1]


def test_an_mlp_has_three_activations():
    with pytest.raises(TypeError) as raised:
        MLP([4, 3], activation="gelu")
    assert str(raised.value) == "MLP: expected activation to be none, relu or sigmoid, got 'gelu'"


def test_a_copied_mlp_has_weights_of_its_own(device):
    mlp = MLP([4, 3]).to(device)
    twin = copy.deepcopy(mlp)
    with torch.no_grad():
        mlp.weight_0.zero_()
    assert twin.weights[0] is twin.weight_0 and twin.weights[0].any()
    assert mlp.double().weights[0].dtype == torch.float64


def test_autocast_reaches_an_mlp(device):
    mlp = MLP([4, 3]).to(device)
    with Amp(mlp, opt_level="O1", verbosity=0):
        assert mlp(torch.randn(2, 4, device=device)).dtype == torch.float16

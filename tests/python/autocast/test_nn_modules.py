"""Every module and loss of torch.nn runs at O1, O2, O4 and O5, as under autocast."""

import copy

import pytest
import torch
from torch import nn

from torchamp import amp

LEVELS = ["O1", "O2", "O4", "O5"]


def x(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes).mul(0.8).add(0.1).requires_grad_()


def classes(*sizes: int) -> torch.Tensor:
    return torch.arange(torch.Size(sizes).numel()).view(sizes) % 3


def signs(*sizes: int) -> torch.Tensor:
    return classes(*sizes).float().sub(0.5).sign()


#: By its class's name: a module's arguments, and what it is called with.
ELEMENTWISE = (
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid "
    "Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink "
    "Dropout AlphaDropout FeatureAlphaDropout Flatten"
)
CASES = {
    **{name: ((), [x(2, 4)]) for name in ELEMENTWISE.split()},
    **{name: ((1,), [x(2, 4)]) for name in ("Softmax", "Softmin", "LogSoftmax")},
    "Softmax2d": ((), [x(2, 3, 4, 4)]),
    "Threshold": ((0.1, 0.0), [x(2, 4)]),
    "Linear": ((4, 3), [x(2, 4)]),
    "Bilinear": ((4, 3, 2), [x(2, 4), x(2, 3)]),
    "Embedding": ((3, 4), [classes(2, 3)]),
    "EmbeddingBag": ((3, 4), [classes(2, 3)]),
    **{
        f"{kind}{dims}d": ((2, 3, 3), [x(2, 2, *[6] * dims)])
        for kind in ("Conv", "ConvTranspose")
        for dims in (1, 2, 3)
    },
    **{
        f"{kind}Pool{dims}d": ((2,), [x(2, 2, *[6] * dims)])
        for kind in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg")
        for dims in (1, 2, 3)
    },
    **{f"LPPool{dims}d": ((2, 2), [x(2, 2, *[6] * dims)]) for dims in (1, 2, 3)},
    "FractionalMaxPool2d": ((2, 3), [x(2, 2, 6, 6)]),
    "FractionalMaxPool3d": ((2, 3), [x(2, 2, 6, 6, 6)]),
    "Fold": (((4, 4), (2, 2)), [x(1, 4, 9)]),
    "Unfold": (((2, 2),), [x(1, 2, 4, 4)]),
    **{
        f"{kind}Pad{dims}d": ((1,), [x(2, 2, *[4] * dims)])
        for kind in ("Reflection", "Replication", "Zero", "Circular")
        for dims in (1, 2, 3)
    },
    **{f"ConstantPad{dims}d": ((1, 0.5), [x(2, 2, *[4] * dims)]) for dims in (1, 2, 3)},
    **{
        f"{kind}Norm{dims}d": ((2,), [x(3, 2, *[4] * dims)])
        for kind in ("Batch", "Instance")
        for dims in (1, 2, 3)
    },
    "GroupNorm": ((2, 4), [x(2, 4, 3)]),
    "LayerNorm": ((4,), [x(2, 4)]),
    "RMSNorm": ((4,), [x(2, 4)]),
    "LocalResponseNorm": ((2,), [x(2, 4, 3, 3)]),
    "CosineSimilarity": ((), [x(2, 4), x(2, 4)]),
    "PairwiseDistance": ((), [x(2, 4), x(2, 4)]),
    "PixelShuffle": ((2,), [x(1, 4, 2, 2)]),
    "PixelUnshuffle": ((2,), [x(1, 1, 4, 4)]),
    "ChannelShuffle": ((2,), [x(1, 4, 2, 2)]),
    "Upsample": ((None, 2), [x(1, 2, 3, 3)]),
    "UpsamplingNearest2d": ((None, 2), [x(1, 2, 3, 3)]),
    "UpsamplingBilinear2d": ((None, 2), [x(1, 2, 3, 3)]),
    **{name: ((4, 3), [x(5, 2, 4)]) for name in ("RNN", "LSTM", "GRU")},
    **{name: ((4, 3), [x(2, 4)]) for name in ("RNNCell", "LSTMCell", "GRUCell")},
    "MultiheadAttention": ((4, 2), [x(3, 2, 4), x(3, 2, 4), x(3, 2, 4)]),
    "TransformerEncoderLayer": ((4, 2, 8), [x(3, 2, 4)]),
    "TransformerDecoderLayer": ((4, 2, 8), [x(3, 2, 4), x(3, 2, 4)]),
    "Transformer": ((4, 2, 1, 1, 8), [x(3, 2, 4), x(3, 2, 4)]),
    "L1Loss": ((), [x(3, 4), x(3, 4)]),
    "MSELoss": ((), [x(3, 4), x(3, 4)]),
    "SmoothL1Loss": ((), [x(3, 4), x(3, 4)]),
    "HuberLoss": ((), [x(3, 4), x(3, 4)]),
    "PoissonNLLLoss": ((), [x(3, 4), x(3, 4)]),
    "KLDivLoss": ((), [x(3, 4), x(3, 4)]),
    "GaussianNLLLoss": ((), [x(3, 4), x(3, 4), x(3, 4)]),
    "BCEWithLogitsLoss": ((), [x(3, 4), x(3, 4)]),
    "MultiLabelSoftMarginLoss": ((), [x(3, 4), signs(3, 4)]),
    "SoftMarginLoss": ((), [x(3, 4), signs(3, 4)]),
    "HingeEmbeddingLoss": ((), [x(3, 4), signs(3, 4)]),
    "MarginRankingLoss": ((), [x(3), x(3), signs(3)]),
    "CosineEmbeddingLoss": ((), [x(3, 4), x(3, 4), signs(3)]),
    "TripletMarginLoss": ((), [x(3, 4), x(3, 4), x(3, 4)]),
    "TripletMarginWithDistanceLoss": ((), [x(3, 4), x(3, 4), x(3, 4)]),
    "CrossEntropyLoss": ((), [x(3, 4), classes(3)]),
    "NLLLoss": ((), [x(3, 4), classes(3)]),
    "MultiMarginLoss": ((), [x(3, 4), classes(3)]),
    "MultiLabelMarginLoss": ((), [x(3, 4), classes(3, 4)]),
    "CTCLoss": ((), [x(5, 2, 4), classes(2, 2) + 1, classes(2) * 0 + 5, classes(2) * 0 + 2]),
    "AdaptiveLogSoftmaxWithLoss": ((4, 6, [2, 4]), [x(3, 4), classes(3)]),
}


def run(module: nn.Module, arguments: list[torch.Tensor]) -> None:
    """Forward and backward."""
    outputs = module(*copy.deepcopy(arguments))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    flat = [o for each in outputs for o in (each if isinstance(each, tuple) else (each,))]
    loss = sum(o.float().sum() for o in flat if o is not None and o.is_floating_point())
    loss.backward()


class Around(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *arguments: torch.Tensor) -> object:
        return self.part(*arguments)


#: Their kernels are not for 16 bits, or not for float16; autocast runs them in float32.
WITHOUT_KERNELS = {
    "cpu": "RReLU AvgPool3d LPPool3d LocalResponseNorm MultiMarginLoss MultiLabelMarginLoss "
    "CTCLoss",
    "cuda": "CTCLoss",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_it_runs(name, level, device):
    options, inputs = CASES[name]
    on_device = [each.detach().to(device).requires_grad_(each.requires_grad) for each in inputs]
    model = Around(getattr(nn, name)(*options).to(device))
    lacks_kernel = name in WITHOUT_KERNELS[device.type].split()
    kept = ["part"] if lacks_kernel and level in ("O2", "O5") else []
    run(amp.initialize(model, opt_level=level, verbosity=0, keep_fp32=kept), on_device)

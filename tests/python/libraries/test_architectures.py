"""Architectures of transformers and diffusers, and torchvision's detectors, tiny and without
weights, train at each level as in float32."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchamp import amp, optimizers

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("libraries"),
]


#: Sizes by the names that architectures have for them.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "dim"), 32),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "n_positions"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_experts_per_tok"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "attention_window", "patch_size"), 8),
    **{"word_embed_proj_dim": 32, "moe_intermediate_size": 32, "max_position_embeddings": 64},
    **{"vocab_size": 96, "pad_token_id": 0, "decoder_start_token_id": 0},
    **{"num_key_value_heads": 2, "rotary_dim": 4, "image_size": 16},
}

TRANSFORMERS = {
    "AutoModelForCausalLM": (
        "gpt2 gpt_neox gptj llama mistral mixtral qwen2 qwen3 gemma gemma2 phi phi3 opt bloom "
        "mamba olmo olmo2 stablelm cohere codegen starcoder2 granite nemotron mpt gpt_oss glm4 "
        "xglm biogpt openai-gpt gpt_bigcode persimmon"
    ),
    "AutoModelForSeq2SeqLM": "t5 mt5 bart pegasus mbart blenderbot",
    "AutoModelForMaskedLM": (
        "bert roberta electra albert deberta deberta-v2 mpnet camembert squeezebert modernbert "
        "fnet ibert megatron-bert"
    ),
    "AutoModelForImageClassification": "vit dinov2",
}

#: Networks that raise torch's error, with a note that says what to do: deberta fills masks with
#: float32's lowest number, and fnet's transforms have no kernel in 16 bits.
REFUSED = {("deberta", "O1"), ("deberta", "O4"), ("fnet", "O2"), ("fnet", "O5")}


def of_transformers(kind: str, name: str) -> tuple[torch.nn.Module, Callable]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(name, **SIZES)
    model = getattr(transformers, kind).from_config(config)
    if kind == "AutoModelForImageClassification":
        inputs = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 0, 1])}
    else:
        ids = torch.randint(1, 96, (4, 16))
        inputs = {"input_ids": ids, "labels": ids}
    return model, lambda model: model(**inputs)["loss"]


def of_diffusers(name: str) -> tuple[torch.nn.Module, Callable]:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    model = {
        "UNet2DModel": lambda net: net(
            sample_size=8,
            block_out_channels=(8, 16),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            layers_per_block=1,
            norm_num_groups=4,
        ),
        "DiTTransformer2DModel": lambda net: net(
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=3,
            out_channels=3,
            num_layers=2,
            sample_size=8,
            norm_num_groups=4,
        ),
    }[name](getattr(diffusers, name))
    images, times = torch.randn(2, 3, 8, 8), torch.tensor([3, 700])
    labels = {} if name == "UNet2DModel" else {"class_labels": torch.tensor([1, 2])}
    return model, lambda model: (model(images, times, **labels).sample - images).pow(2).mean()


def of_torchvision(name: str) -> tuple[torch.nn.Module, Callable]:
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    maker = getattr(torchvision.models.detection, name)
    model = maker(weights=None, weights_backbone=None, num_classes=3)
    model.transform.min_size, model.transform.max_size = (32,), 48
    images = [torch.rand(3, 64, 64) for _ in range(2)]
    boxes = torch.tensor([[3.3, 4.7, 40.1, 50.9], [10.2, 12.6, 33.1, 44.8]])
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in images]

    def loss_of(model: torch.nn.Module) -> torch.Tensor:
        torch.manual_seed(1)  # of the proposals that it samples
        return sum(model(images, targets).values())

    return model, loss_of


#: The keep_fp32 of each where the level casts the model: boxes that 16 bits would move, and the
#: parts whose ops have no such kernel.
DETECTORS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": ("targets", "rpn", "roi_heads.box_roi_pool"),
    "fcos_resnet50_fpn": ("targets",),
    "ssdlite320_mobilenet_v3_large": ("targets",),
}

MAKERS = {
    **{
        name: lambda kind=kind, name=name: of_transformers(kind, name)
        for kind, names in TRANSFORMERS.items()
        for name in names.split()
    },
    "UNet2DModel": lambda: of_diffusers("UNet2DModel"),
    "DiTTransformer2DModel": lambda: of_diffusers("DiTTransformer2DModel"),
    **{name: lambda name=name: of_torchvision(name) for name in DETECTORS},
}


def losses(name: str, level: str, kept: tuple[str, ...] = ()) -> list[float]:
    """The losses of six steps, a detector's of two, without dropout, with parts kept in float32."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, loss_of = MAKERS[name]()
    if name in DETECTORS:
        for dropout in (each for each in model.modules() if isinstance(each, torch.nn.Dropout)):
            dropout.p = 0
    else:
        model.eval()
    optimizer = optimizers.FusedAdamW(model.parameters(), lr=1e-3)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=level, loss_scale=128.0, keep_fp32=kept, verbosity=0
    )
    result = []
    try:
        for _ in range(2 if name in DETECTORS else 6):
            optimizer.zero_grad()
            loss = loss_of(model)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            result.append(loss.item())
    finally:
        amp.release(model)
    return result


@pytest.mark.parametrize("name", MAKERS)
def test_it_trains_as_in_float32(name):
    expected = losses(name, "O0")
    for level in ("O1", "O2", "O4", "O5"):
        if (name, level) in REFUSED:
            with pytest.raises(RuntimeError) as raised:
                losses(name, level)
            (note,) = raised.value.__notes__
            assert note.startswith("torchamp: ")
            continue
        found = losses(name, level, DETECTORS.get(name, ()) if level in ("O2", "O5") else ())
        # The proposals of a detector, among which it chooses, change with the last bits.
        assert found[0] == pytest.approx(expected[0], rel=0.1 if name in DETECTORS else 0.01), level
        if name in DETECTORS:
            continue
        gained = expected[0] - expected[-1]
        assert found[0] - found[-1] == pytest.approx(gained, rel=0.25), level


def test_errors_name_what_a_detector_has_to_keep():
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    for count, part in enumerate(DETECTORS[name][1:], 1):
        with pytest.raises(RuntimeError) as raised:
            losses(name, "O5", DETECTORS[name][:count])
        assert f"initialize with keep_fp32={part!r}" in raised.value.__notes__[0]

"""The networks for bench_training.py, in plain PyTorch, most important first."""

from networks.convolutional import conv2d, resnet, vgg16
from networks.recurrent import lstm
from networks.task import Batch, Task, loss_of
from networks.transformer import bert, gpt2, llama

#: Typical sizes on a GPU. conv2d's data set of 800 images takes 16 batches.
FULL: dict[str, Task] = {
    "gpt2_124m_2k": gpt2(12, 768, 12, batch=2, length=1024),
    "gpt2_350m_2k": gpt2(24, 1024, 16, batch=2, length=1024),
    "gpt2_124m_8k": gpt2(12, 768, 12, batch=8, length=1024),
    "resnet50": resnet(batch=64),
    "bert_large": bert(24, 1024, 16, batch=32, length=128),
    "gpt2_350m_8k": gpt2(24, 1024, 16, batch=8, length=1024),
    "llama_1b_8k": llama(16, 2048, 8192, 32, 8, batch=4, length=2048, words=32768),
    "vgg16": vgg16(batch=32),
    "conv2d": conv2d(batch=50, side=256, width=128),
    "lstm": lstm(2, 1500, batch=64, length=70, words=33278),
}

#: The same networks, small enough for a CPU.
SMALL: dict[str, Task] = {
    "gpt2_small_128": gpt2(2, 256, 4, batch=2, length=64, words=2048),
    "gpt2_small_512": gpt2(2, 256, 4, batch=8, length=64, words=2048),
    "bert_small": bert(2, 256, 4, batch=2, length=64, words=2048),
    "llama_small": llama(2, 256, 1024, 4, 2, batch=4, length=64, words=2048),
    "lstm_small": lstm(2, 128, batch=8, length=16, words=1000),
    "resnet_small": resnet(batch=8, side=32, blocks=(1, 1, 1, 1), width=16, classes=10),
    "vgg_small": vgg16(batch=8, side=32, width=8, hidden=512, classes=10),
    "conv2d_small": conv2d(batch=5, side=32, width=16),
}

PRESETS = {"full": FULL, "small": SMALL}

__all__ = ["FULL", "PRESETS", "SMALL", "Batch", "Task", "loss_of"]

"""The bare loop of benchmarks/native/bare_step.cpp: what a step takes at least on AVX2."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from step_variants import Grads, Variant
from workloads import random_tensors

SOURCE = Path(__file__).resolve().parents[1] / "native" / "bare_step.cpp"
FLAGS = "-std=c++17 -O3 -mavx2 -mfma -mf16c -pthread -shared -fPIC".split()
LR, BETA1, BETA2, EPS, WEIGHT_DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2


class Tensor(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("grad", "master", "average", "squares", "model")),
        ("count", ctypes.c_int64),
    ]


class Coefficients(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_float)
        for name in (
            *("grad_factor", "decay", "one_minus_beta1", "beta2"),
            *("one_minus_beta2", "root_factor", "eps", "step_size"),
        )
    ]

    @classmethod
    def of_step(cls, step: int, scale: float) -> Coefficients:
        root_factor = (1 - BETA2**step) ** -0.5
        step_size = LR / (1 - BETA1**step)
        return cls(
            1 / scale,
            1 - LR * WEIGHT_DECAY,
            1 - BETA1,
            BETA2,
            1 - BETA2,
            root_factor,
            EPS,
            step_size,
        )


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "c++"))


def is_available(device: str) -> bool:
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return device == "cpu" and has_avx2 and shutil.which(compiler()[0]) is not None


@functools.cache
def library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "libbare_step.so"
        subprocess.run([*compiler(), *FLAGS, SOURCE, "-o", path], check=True)
        loaded = ctypes.CDLL(str(path))
    loaded.bare_step.restype = ctypes.c_bool
    return loaded


def bare_step(shared: Grads, scale: float = 1.0) -> Variant:
    masters = random_tensors(shared.shapes, torch.float32, "cpu")
    models = [master.half() for master in masters]
    averages = [torch.zeros_like(master) for master in masters]
    squares = [torch.zeros_like(master) for master in masters]
    lists = (shared.half, masters, averages, squares, models)
    tensors = (Tensor * len(masters))(
        *(
            Tensor(*(list_[i].data_ptr() for list_ in lists), m.numel())
            for i, m in enumerate(masters)
        )
    )
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        coefficients = Coefficients.of_step(steps, scale)
        threads = torch.get_num_threads()
        library().bare_step(
            tensors, ctypes.c_int64(len(tensors)), threads, ctypes.byref(coefficients)
        )

    return Variant(step, lambda: [tensor for list_ in lists for tensor in list_])

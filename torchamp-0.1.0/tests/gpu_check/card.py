"""The card of this machine, and the versions that a measurement depends on, as one line of JSON.

python tests/gpu_check/card.py cuda|cpu
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from typing import Any


def find_card() -> None:
    """Exits with a message if the driver sees no card."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        sys.exit("no card: libcuda.so.1, the CUDA driver, is not here")
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or count.value == 0:
        sys.exit(f"no card: the CUDA driver sees {count.value} devices (status {status})")


def card() -> dict[str, Any]:
    """The card as torch sees it."""
    find_card()
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"no card: torch {torch.__version__} sees none (CUDA {torch.version.cuda})")
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "arch": f"{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
    }


def no_card() -> dict[str, Any]:
    """The default architecture without a card."""
    import torch

    return {"device": platform.machine(), "arch": "90", "torch": torch.__version__}


def printed(program: str, *arguments: str) -> str | None:
    """A program's output; None if it is not on PATH or fails."""
    if not shutil.which(program):
        return None
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def version_of(program: str) -> str | None:
    """The longest version number in the output."""
    numbers = re.findall(r"\d+(?:\.\d+)+", printed(program, "--version") or "")
    return max(numbers, key=len, default=None)


def main() -> None:
    facts = card() if sys.argv[1] == "cuda" else no_card()
    facts |= {name: version_of(name) for name in ("nvcc", "cmake", "c++", "compute-sanitizer")}
    facts |= {"python": platform.python_version(), "cores": os.cpu_count()}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()

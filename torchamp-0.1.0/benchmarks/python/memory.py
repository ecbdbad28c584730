"""Free memory of a device."""

from __future__ import annotations

import gc

import torch


def release(device: str) -> None:
    """Frees memory that only caches and reference cycles hold."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def free_bytes(device: str) -> int:
    """Bytes that can be allocated; call release() first."""
    if device == "cuda":
        unused_cache = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + unused_cache
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return 1024 * int(fields["MemAvailable"].split()[0])

"""apex's other name for its batch norm over all ranks."""

from torchamp.compat.apex.parallel.sync_batchnorm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]

"""apex.parallel, on torch's own."""

from torch.distributed import ReduceOp

from torchamp.compat import _gone
from torchamp.compat.apex.parallel import LARC, distributed
from torchamp.compat.apex.parallel.distributed import DistributedDataParallel
from torchamp.compat.apex.parallel.sync_batchnorm import (
    SyncBatchNorm,
    convert_syncbn_model,
    create_syncbn_process_group,
)

__all__ = [
    "DistributedDataParallel",
    "LARC",
    "ReduceOp",
    "SyncBatchNorm",
    "convert_syncbn_model",
    "create_syncbn_process_group",
    "distributed",
]

__getattr__: _gone.Getattr = _gone.attributes_of("apex.parallel")

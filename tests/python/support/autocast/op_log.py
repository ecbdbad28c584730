"""What ops a function runs, as the dispatcher sees them below autograd and autocast."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OpLog(TorchDispatchMode):
    """The ops that give floating tensors, each with those."""

    def __init__(self):
        super().__init__()
        self.results = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        floating = [x for x in tensors if x.is_floating_point()]
        if floating:
            self.results.append((op, floating))
        return result

"""apex.amp.lists: what O1 casts, by apex's lists. initialize and init follow programs that edit
them."""

from torchamp.compat.apex.amp.lists import functional_overrides, tensor_overrides, torch_overrides

__all__ = ["functional_overrides", "tensor_overrides", "torch_overrides"]

"""apex_C: flattening."""

import apex_C
import torch


def test_flatten_and_unflatten_are_inverse(device):
    tensors = [torch.randn(2, 3, device=device), torch.randn((), device=device)]
    flat = apex_C.flatten(tensors)
    assert flat.shape == (7,)
    views = apex_C.unflatten(flat, tensors)
    assert isinstance(views, list)
    for view, tensor in zip(views, tensors):
        assert torch.equal(view, tensor) and view.shape == tensor.shape
    flat.zero_()
    assert not views[0].any(), "views share the flat tensor's memory"
    assert tensors[0].any()

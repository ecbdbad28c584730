"""Mixed precision at apex's opt levels: `from torchamp import amp` for `from apex import amp`.

model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
"""

from torchamp.amp._apex_style import (
    clip_grad_norm_,
    clip_grad_value_,
    disable_casts,
    initialize,
    load_state_dict,
    master_params,
    refresh_masters,
    scale_loss,
    state_dict,
)

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "disable_casts",
    "initialize",
    "load_state_dict",
    "master_params",
    "refresh_masters",
    "scale_loss",
    "state_dict",
]

"""Mixed precision at apex's opt levels: `from torchamp import amp` for `from apex import amp`.

model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
"""

from torchamp._tools.inspect.monitor import Monitor
from torchamp._tools.inspect.overflow_trace import OverflowTrace, trace_overflow
from torchamp._tools.inspect.preflight import Preflight, preflight
from torchamp._tools.inspect.report import Report, report
from torchamp._tools.inspect.trial import Verdict
from torchamp.amp._amp import (
    load,
    load_state_dict,
    master_params,
    refresh_masters,
    save,
    state_dict,
    telemetry,
)
from torchamp.amp._casts.autocast import (
    autocast,
    bfloat16_function,
    disable_casts,
    float_function,
    half_function,
    promote_function,
    register_bfloat16_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from torchamp.amp._float32_params import float32_params
from torchamp.amp._grad_scaler import GradScaler
from torchamp.amp._graphed import graphed
from torchamp.amp._initialize import initialize
from torchamp.amp._model.inference import AveragedModel, cast_for_inference
from torchamp.amp._optimizer.clip import clip_grad_norm_, clip_grad_value_
from torchamp.amp._optimizer.loss import finish, scale, scale_loss
from torchamp.amp._policy import LossScaleOptimizer, Policy, set_policy
from torchamp.amp._release import release
from torchamp.amp._run.ranks import fsdp_policy
from torchamp.amp._run.session import Telemetry
from torchamp.amp._run.settings import Level

__all__ = [
    "AveragedModel",
    "GradScaler",
    "Level",
    "LossScaleOptimizer",
    "Monitor",
    "OverflowTrace",
    "Policy",
    "Preflight",
    "Report",
    "Telemetry",
    "Verdict",
    "autocast",
    "bfloat16_function",
    "cast_for_inference",
    "clip_grad_norm_",
    "clip_grad_value_",
    "disable_casts",
    "finish",
    "float32_params",
    "float_function",
    "fsdp_policy",
    "graphed",
    "half_function",
    "initialize",
    "load",
    "load_state_dict",
    "master_params",
    "preflight",
    "promote_function",
    "refresh_masters",
    "register_bfloat16_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "release",
    "report",
    "save",
    "scale",
    "scale_loss",
    "set_policy",
    "state_dict",
    "telemetry",
    "trace_overflow",
]

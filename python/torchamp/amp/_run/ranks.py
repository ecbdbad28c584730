"""Training on several ranks: process groups, which agree on overflows; DistributedDataParallel
around a model; fully_shard and tensor parallelism, whose float32 shards are the masters."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import distributed
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from torchamp._load import _C
from torchamp._shards import is_dtensor, is_flattened
from torchamp.amp._casts.masters import LOW_PRECISION, mastered, params_of
from torchamp.amp._run.settings import Settings, settings_for

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy


ProcessGroups = Union["torch.distributed.ProcessGroup", Sequence["torch.distributed.ProcessGroup"]]


def groups_of(function: str, process_group: ProcessGroups | None) -> list[Any]:
    """The argument `process_group` of `function` as a list.

    Raises TypeError unless it is a group, some of them, or None; ValueError for a group that this
    rank is not in, RuntimeError before init_process_group.
    """
    if process_group is None:
        return []
    groups: list[Any] = [process_group]
    if isinstance(process_group, Sequence) and not isinstance(process_group, str):
        groups = list(process_group)
    for group in groups:
        _check_group(function, group)
    return groups


def _check_group(function: str, group: Any) -> None:
    if not distributed.is_available():
        raise RuntimeError(
            f"{function}: expected a torch with distributed for process_group, got one without"
        )
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"{function}: expected process_group to be one that this rank, "
            f"{distributed.get_rank()}, is in, got one that it is not"
        )
    if not isinstance(group, distributed.ProcessGroup):
        raise TypeError(
            f"{function}: expected process_group to be a torch.distributed.ProcessGroup or a list "
            f"of them, got {group!r}"
        )
    if not distributed.is_initialized():
        raise RuntimeError(
            f"{function}: expected torch.distributed to be initialized for process_group, but it "
            "is not; call torch.distributed.init_process_group first"
        )


def agreement_over(groups: Sequence[Any]) -> _C.Agreement:
    """An agreement of the ranks of `groups`, which reduce one after the other: together they are
    those of a mesh."""

    def all_reduce_max(tensor: torch.Tensor) -> None:
        for group in groups:
            distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group)

    return _C.Agreement(all_reduce_max, distributed.get_rank(), distributed.get_world_size())


class DataParallel:
    """The DistributedDataParallel that runs one model's forwards, if there is one."""

    def __init__(self, model: torch.nn.Module, scalers: Sequence[_C.LossScaler]) -> None:
        self._model = weakref.ref(model)
        self._scalers = scalers
        #: The wrapper of the last forward for a backward, until share().
        self.noted: DistributedDataParallel | None = None
        #: Whether the last forward for a backward ran in no_sync().
        self.is_unsynced: bool = False
        #: The wrapper for which share() has shared.
        self._shared: weakref.ref[DistributedDataParallel] | None = None

    def note_forward(self, wrapper: DistributedDataParallel | None) -> None:
        """Called in a forward of the model, which `wrapper` runs; torch.compile captures it."""
        if torch.is_grad_enabled():
            self.noted = wrapper
            self.is_unsynced = wrapper is not None and not wrapper.require_backward_grad_sync

    def reaches(self, states: Sequence[_C.OptimizerState]) -> bool:
        """Whether one of `states` steps one of the model's parameters."""
        model = self._model()
        return model is not None and any(
            state.steps(param) for state in states for param in model.parameters()
        )

    def share(self) -> None:
        """Gives every rank the first rank's masters and loss scales, once a wrapper. It has given
        them the first rank's model, which is rounded."""
        wrapper = self.noted
        if wrapper is None or (self._shared is not None and self._shared() is wrapper):
            self.noted = None
            return
        _check_is_outside(wrapper)
        self.noted = None
        self._shared = weakref.ref(wrapper)
        self._share_after_join(wrapper)
        if wrapper._join_config.enable:
            for param in _masters_in(wrapper):  # ranks without a batch would miss a broadcast
                param.set_master_where_held(param.model.detach().float())
        else:
            self._broadcast(wrapper, source=0)

    def _share_after_join(self, wrapper: DistributedDataParallel) -> None:
        """Broadcasts where Join ends, too: the wrapper gives all ranks the model of one that
        stepped last."""
        # A proxy, for no cycle: that would keep O1's casts.
        joined: DistributedDataParallel = weakref.proxy(wrapper)  # type: ignore[assignment]
        sync_model = type(wrapper)._sync_final_model

        def sync_final_model(is_last_joiner: bool) -> None:
            sync_model(joined, is_last_joiner)
            self._broadcast(joined, joined._authoritative_rank)

        vars(wrapper)["_sync_final_model"] = sync_final_model

    def _broadcast(self, wrapper: DistributedDataParallel, source: int) -> None:
        """`source`: a rank of the wrapper's group."""
        group = wrapper.process_group
        source = distributed.get_global_rank(group, source)
        for param in _masters_in(wrapper):
            value = param.value()
            distributed.broadcast(value, source, group)
            param.set_master_where_held(value)
        states = torch.tensor([scaler.state() for scaler in self._scalers], dtype=torch.float64)
        states = states.to(wrapper.device)
        distributed.broadcast(states, source, group)
        for scaler, (scale, growth) in zip(self._scalers, states.tolist()):
            scaler.load_state(scale, int(growth))


#: The names in a wrapper's log of the dtypes of the parameters that it was given.
_NAMES = {
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.float32: "float",
    torch.float64: "double",
}


def _check_is_outside(wrapper: DistributedDataParallel) -> None:
    """Raises RuntimeError if parameters were cast since the wrapper hooked them: it waits for
    backwards of the tensors that they were, and reduces no grad."""
    given = wrapper._get_ddp_logging_data()["dtypes"].split(", ")
    for name, param in wrapper.module.named_parameters():
        is_reduced = param.requires_grad and name not in wrapper.parameters_to_ignore
        if is_reduced and _NAMES.get(param.dtype, given[0]) not in given:
            raise RuntimeError(
                "scale_loss: expected DistributedDataParallel around what initialize returned, got "
                f"one made before initialize cast {name!r} to {param.dtype}, whose grads it does "
                "not reduce; wrap the model after initialize"
            )


def _masters_in(wrapper: DistributedDataParallel) -> Iterator[_C.Param]:
    """The Params with a master of their own that the wrapper synchronizes."""
    for name, param in wrapper.module.named_parameters():
        found = mastered(param)
        if found is not None and name not in wrapper.parameters_to_ignore:
            yield found


def fsdp_policy(opt_level: str) -> MixedPrecisionPolicy:
    """Returns the mp_policy of torch's fully_shard for a model that is to be initialized at
    `opt_level`::

        fully_shard(model, mp_policy=amp.fsdp_policy("O2"))
        optimizer = FusedAdamW(model.parameters())
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")

    At O2 and O5 the parameters that it gathers are float16 or bfloat16, grads are reduced in
    float32, and the float32 shards are the masters. At O0, O1 and O4 they are gathered in float32.
    So are the batch norms that O2 and O5 keep in float32: shard these first, with
    `fsdp_policy("O0")`.

    Raises:
        RuntimeError: for an unknown level.
        ValueError: for O3, which has no masters.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    try:
        properties = settings_for(opt_level).properties
    except RuntimeError as error:
        raise RuntimeError(str(error).replace("initialize", "fsdp_policy", 1)) from None
    if properties.cast_model_type not in LOW_PRECISION:
        return MixedPrecisionPolicy()
    if not properties.master_weights:
        raise ValueError(
            "fsdp_policy: expected opt_level to have master weights, which the shards are, got "
            f"{opt_level!r}"
        )
    return MixedPrecisionPolicy(param_dtype=properties.cast_model_type, reduce_dtype=torch.float32)


def check_dtensors(models: list[torch.nn.Module], settings: Settings) -> None:
    """Raises TypeError or ValueError for DTensors that `settings` cannot be applied to."""
    dtype = settings.properties.cast_model_type
    for i, model in enumerate(models):
        for name, buffer in model.named_buffers():
            changes = buffer.is_floating_point() and dtype not in (None, buffer.dtype)
            if is_dtensor(buffer) and changes:
                raise TypeError(
                    f"initialize: expected buffer {name!r} of models[{i}] to be a plain tensor, "
                    f"which {settings.properties.opt_level} casts, got a DTensor"
                )
        for name, module, policy in _owned(model):
            for param_name, param in module.named_parameters(recurse=False):
                if is_dtensor(param):
                    what = f"parameter {'.'.join((name, param_name)).lstrip('.')!r} of models[{i}]"
                    _check_dtensor(what, module, param, policy, settings)


def check_flattened(
    optimizers: list[torch.optim.Optimizer], has_groups: bool, settings: Settings
) -> None:
    """Raises RuntimeError or TypeError for parameters of FullyShardedDataParallel that `settings`
    cannot be applied to. has_groups: whether ranks agree."""
    if not any(map(is_flattened, params_of(optimizers))):
        return
    if settings.properties.cast_model_type in LOW_PRECISION:
        raise TypeError(
            "initialize: expected optimizers not to have parameters of FullyShardedDataParallel at "
            f"{settings.properties.opt_level}, got some; use fully_shard with amp.fsdp_policy"
        )
    if not has_groups and settings.properties.loss_scale == "dynamic":
        raise RuntimeError(
            "initialize: expected process_group with parameters of FullyShardedDataParallel, of "
            "which each rank has another part, got None"
        )


def _check_dtensor(
    what: str, module: torch.nn.Module, param: torch.Tensor, policy: Any, settings: Settings
) -> None:
    level, dtype = settings.properties.opt_level, settings.properties.cast_model_type
    if param.is_floating_point() and param.dtype != torch.float32:
        raise TypeError(
            f"initialize: expected {what} to be float32, as the shards are the masters, got a "
            f"DTensor of {param.dtype}"
        )
    low = dtype if dtype in LOW_PRECISION else None
    if low is not None and not settings.keeps_masters:
        raise TypeError(
            f"initialize: expected {what} to be a plain tensor at {level} without master weights, "
            "got a DTensor, whose float32 shards are masters"
        )
    if low is not None and policy is None:
        raise TypeError(
            f"initialize: expected {what} to be a plain tensor or one that fully_shard casts, got "
            f"another DTensor, which {level} cannot cast; fully_shard it with "
            f"mp_policy=amp.fsdp_policy({level!r}), or use O0, O1 or O4"
        )
    is_kept = bool(settings.properties.keep_batchnorm_fp32) and isinstance(module, _BatchNorm)
    expected = None if is_kept else low
    got = getattr(policy, "param_dtype", None)
    if got != expected and (got, expected) != (torch.float32, None):
        fitting = level if expected is not None else "O0"
        raise ValueError(
            f"initialize: expected {what} to be sharded with mp_policy=amp.fsdp_policy("
            f"{fitting!r}), whose param_dtype is {expected}, got param_dtype {got}"
        )


def _owned(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, Any]]:
    """Every module, its name, and the mp_policy of the fully_shard that its own parameters belong
    to, None where they belong to none."""
    policies: dict[str, Any] = {}
    for name, module in model.named_modules():
        parent = name.rpartition(".")[0] if name else None
        inherited = None if parent is None else policies[parent]
        policies[name] = _state_of(module)._mp_policy if _is_fsdp(module) else inherited
        yield name, module, policies[name]


def _state_of(module: Any) -> Any:
    return module._get_fsdp_state()


def _is_fsdp(module: torch.nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return isinstance(module, getattr(fsdp, "FSDPModule", ()))


def are_sharded(models: Iterable[torch.nn.Module]) -> bool:
    """Whether fully_shard, tensor parallelism or FullyShardedDataParallel has been applied to
    one."""
    return any(
        _is_fsdp(module)
        or any(is_dtensor(p) or is_flattened(p) for p in module.parameters(recurse=False))
        for model in models
        for module in model.modules()
    )


def leave_unsynced(models: Iterable[torch.nn.Module]) -> bool:
    """Whether fully_shard leaves the grads of one of `models` to this rank, by
    set_requires_gradient_sync(False), and reduces them with those of a later backward."""
    return any(
        not group.reduce_grads
        for model in models
        for module in model.modules()
        if _is_fsdp(module)
        for group in _groups_in(_state_of(module))
    )


def _groups_in(state: Any) -> list[Any]:
    """What it gathers and reduces together: older torch has one a module, at most."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]

"""What DistributedDataParallel does around a model: backwards that it leaves unsynchronized, and
whose masters its ranks have."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from torchamp._load import _C
from torchamp.amp._loss_scalers import LossScalers
from torchamp.amp._masters import mastered


class DataParallel:
    """The DistributedDataParallel that runs one model's forwards, if there is one."""

    def __init__(self, model: torch.nn.Module, scalers: LossScalers) -> None:
        self._model = weakref.ref(model)
        self._scalers = scalers
        #: That of the last forward for a backward, until share().
        self.noted: DistributedDataParallel | None = None
        #: Whether the last forward for a backward ran in no_sync().
        self.is_unsynced: bool = False
        #: That for which share() has shared.
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
        """Where Join ends, the wrapper gives all ranks the model of one that stepped last."""
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
        for scaler, (scale, growth, hysteresis) in zip(self._scalers, states.tolist()):
            scaler.load_state(scale, int(growth), int(hysteresis))


#: As a wrapper's log names the dtypes of the parameters that it was given.
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
    """Of the parameters that the wrapper synchronizes, those that have a master of their own."""
    for name, param in wrapper.module.named_parameters():
        found = mastered(param)
        if found is not None and name not in wrapper.parameters_to_ignore:
            yield found

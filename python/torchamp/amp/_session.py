"""The state of one initialize, shared by the models and optimizers that it returned."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchamp._load import _C
from torchamp._logging import warn
from torchamp._shards import Shards, mesh_groups_of, shard_of
from torchamp.amp._autocast import OpenCasts, lasting_casts
from torchamp.amp._loss_scalers import LossScalers
from torchamp.amp._masters import params_of
from torchamp.amp._ranks.agreement import agreement_over
from torchamp.amp._ranks.data_parallel import DataParallel
from torchamp.amp._ranks.dtensor import are_sharded
from torchamp.amp._report import Reporter
from torchamp.amp._settings import Settings


class Session:
    """Settings, loss scalers, masters and O1's autocast of one initialize.

    Models and optimizers hold it; it holds neither, so that all are freed with the last of them.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        device: torch.device,
        settings: Settings,
    ) -> None:
        self.settings = settings
        self.device = device
        self.scalers: LossScalers = LossScalers(settings, device)
        #: One an optimizer. Kept alive here, for as long as a model or an optimizer of the session
        #: lives.
        self.states: list[_C.OptimizerState] = []
        #: One a model.
        self.data_parallel: list[DataParallel] = []
        #: Of the optimizers' parameters.
        self.shards: Shards = Shards()
        #: Of the models' state dicts.
        self.hooks: list[RemovableHandle] = []
        #: Whose ranks agree on overflows.
        self._groups: list[Any] = []
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._parts: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        #: Whether the models' parameters may still be sharded.
        self._may_be_sharded = not are_sharded(models)
        self.reporter: Reporter = Reporter(settings, names_of(models))
        self.casts: OpenCasts | None = _open_casts(models, settings)
        self._is_released = False

    def add_model(self, model: torch.nn.Module) -> DataParallel:
        """Returns what is to be told of its forwards."""
        self._models.append(weakref.ref(model))
        self.data_parallel.append(DataParallel(model, self.scalers))
        return self.data_parallel[-1]

    def add_part(self, module: torch.nn.Module) -> None:
        """A module in a model whose own calls cast."""
        self._parts.append(weakref.ref(module))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def add_shards(self, params: Sequence[torch.Tensor]) -> None:
        """Of DTensors among `params`, which an optimizer of the session steps from now on: ranks
        agree on their overflows."""
        self.shards.add(params)
        self.agree_over(mesh_groups_of(params))

    def agree_over(self, groups: Sequence[Any]) -> None:
        """From now on the ranks of `groups`, which are ProcessGroups, and of those of earlier calls
        agree on overflows. All ranks must name them in the same order."""
        new = [group for group in dict.fromkeys(groups) if group not in self._groups]
        if not new:
            return
        self._groups += new
        agreement = agreement_over(tuple(self._groups))
        for scaler in self.scalers:
            scaler.set_agreement(agreement)

    def models(self) -> list[Any]:
        """Those that are still there."""
        return _existing(self._models)

    def parts(self) -> list[Any]:
        """Those that are still there."""
        return _existing(self._parts)

    def optimizers(self) -> list[Any]:
        """Those that are still there."""
        return _existing(self._optimizers)

    def check_not_released(self, function: str) -> None:
        """Raises RuntimeError, which names `function`, after release()."""
        if self._is_released:
            raise RuntimeError(
                f"{function}: expected models in training, got those of an initialize that was "
                "released; use what initialize was given, or initialize it again"
            )

    def check_trains(self, function: str) -> None:
        """Raises RuntimeError, which names `function`, after release(), and after close() where its
        models need the casts."""
        self.check_not_released(function)
        is_closed = self.casts is not None and not self.casts.is_open
        if is_closed and any(model._torchamp.session is self for model in self.models()):
            raise RuntimeError(
                f"{function}: expected an open Amp, got one that close() has ended, whose models "
                "compute in float32; close it after training"
            )

    def check_order(self) -> None:
        """At the first call: raises RuntimeError where initialize came before what shards the
        parameters, so that the optimizers step others than the model has. Warns where O1 or O4 of
        another run casts the code around the models."""
        if self._may_be_sharded and are_sharded(self.models()):
            raise RuntimeError(
                "scale_loss: expected fully_shard, parallelize_module and FullyShardedDataParallel "
                "before initialize, got a model that was sharded after it, whose parameters no "
                "optimizer steps; shard the model, make the optimizer, then call initialize"
            )
        if self._may_be_sharded and self.casts is None and self.models():
            _warn_of_casts()
        self._may_be_sharded = False

    def scaler(self, loss_id: int, function: str) -> _C.LossScaler:
        """Raises IndexError for a loss_id beyond num_losses, TypeError for another type, both of
        which name `function`."""
        try:
            index = operator.index(loss_id)
        except TypeError:
            raise TypeError(
                f"{function}: expected loss_id to be an integer, got {loss_id!r}"
            ) from None
        if not 0 <= index < len(self.scalers):
            raise IndexError(
                f"{function}: expected loss_id to be below num_losses, {len(self.scalers)}, "
                f"got {loss_id}"
            )
        return self.scalers[index]

    def note_zeroed(self, model: torch.nn.Module) -> None:
        """After the model's grads have been zeroed."""
        params = [shard_of(param) for param in model.parameters()]
        for state in self.states:
            state.note_zeroed(params)

    def let_go(self, but: torch.optim.Optimizer) -> None:
        """Optimizers but that one step no longer what their groups do not hold."""
        for optimizer in self.optimizers() if not self.shards else []:
            state = optimizer._torchamp
            if optimizer is not but and not state.core.holds(optimizer.param_groups):
                with state.accesses.suppress():
                    state.core.let_go(params_of([optimizer]))

    def publish_masters(self) -> None:
        """Copies masters that the program has written to the models, for a reader of them."""
        for state in self.states:
            state.publish_masters()

    def leave_step_to_the_program(self, loss_id: int) -> None:
        """Forgets overflows of a loss whose scale the program has updated itself: whether to step
        is its decision."""
        self.scalers[loss_id].forget_deferred()
        for state in self.states:
            state.clear_overflows()

    def close(self) -> None:
        """Ends O1's autocast."""
        if self.casts is not None:
            self.casts.close()

    def close_if_left(self) -> None:
        """Where later calls of initialize have taken all of its models."""
        if all(model._torchamp.session is not self for model in self.models()):
            self.close()

    def end(self) -> None:
        """Forgets models and optimizers, which are plain again."""
        self._is_released = True
        self.close()
        for hook in self.hooks:
            hook.remove()
        self.hooks, self.states, self.data_parallel = [], [], []
        self.shards = Shards()
        self._models, self._parts, self._optimizers = [], [], []


def _warn_of_casts() -> None:
    for dtype in lasting_casts():
        warn(
            "scale_loss: expected no casts in this thread, got a model of an earlier initialize "
            f"that casts to {dtype} outside of forwards, in loss functions too; end them by "
            "amp.release(model) of that model, or suspend them by amp.disable_casts()",
        )


def _existing(references: list[weakref.ref[Any]]) -> list[Any]:
    return [each for each in (reference() for reference in references) if each is not None]


def names_of(models: list[torch.nn.Module]) -> dict[int, str]:
    """The models' parameters' names by id; with the model's number if there are several."""
    names: dict[int, str] = {}
    for i, model in enumerate(models):
        prefix = f"models[{i}]." if len(models) > 1 else ""
        for name, param in model.named_parameters():
            names.setdefault(id(shard_of(param)), prefix + name)
    return names


def _open_casts(models: list[torch.nn.Module], settings: Settings) -> OpenCasts | None:
    dtype = settings.properties.autocast_type
    if dtype is None:
        return None
    types = {param.device.type for model in models for param in model.parameters()}
    return OpenCasts(sorted(types), dtype)

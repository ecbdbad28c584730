"""One object that owns what initialize makes."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Union

import torch

from torchamp._load import _C
from torchamp.amp import _serialize
from torchamp.amp._checks import (
    as_list,
    check_in_backward,
    check_models,
    check_optimizers,
    check_shares,
    one_device,
    warn_of_float64,
)
from torchamp.amp._describe import describe, describe_as_html
from torchamp.amp._kept import Kept
from torchamp.amp._masters import make_masters, params_of, weights_for
from torchamp.amp._model import (
    adopt_model,
    adopt_parts,
    cast_model,
    hook_state_dict,
    params_to_cast,
)
from torchamp.amp._optimizer import adopt_optimizer, state_of
from torchamp.amp._policy import is_marked, level_and_overrides
from torchamp.amp._ranks.agreement import ProcessGroups, groups_of
from torchamp.amp._ranks.dtensor import check_dtensors, check_flattened
from torchamp.amp._ranks.reduction import Reducer
from torchamp.amp._ranks.sharded_masters import shard_masters_of
from torchamp.amp._ranks.sharding import (
    check_same_on_all_ranks,
    check_sharding,
    share_start,
    to_shard,
)
from torchamp.amp._release import release
from torchamp.amp._report import announce
from torchamp.amp._scale_loss import finish, scale, scaled_loss
from torchamp.amp._session import Session
from torchamp.amp._settings import Settings, settings_for

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from typing_extensions import Unpack

    from torchamp.amp._types import Level, Overrides

Optimizers = Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]]


class Amp:
    """Prepares models and optimizers for training at an opt level, and owns the loss scalers.

        amp = torchamp.Amp(model, optimizer, opt_level="O2")
        for data, target in batches:
            optimizer.zero_grad()
            with amp.scale_loss(loss_fn(model(data), target)) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()  # skipped after an overflow

    Arguments, and errors, as amp.initialize's; those of a level are the overrides.

    Objects of this class are independent, except for O1's autocast, which belongs to the thread: it
    lasts until close(), or until the models and optimizers are gone. If another thread than its own
    ends it, it ends soon in the main thread, and elsewhere when the thread next uses torchamp.
    """

    def __init__(
        self,
        models: torch.nn.Module | list[torch.nn.Module],
        optimizers: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None,
        opt_level: Level = None,
        *,
        enabled: bool = True,
        shard_masters: ProcessGroup | None = None,
        process_group: ProcessGroups | None = None,
        **overrides: Unpack[Overrides],
    ) -> None:
        self._session: Session | None = None
        self.models: list[torch.nn.Module] = as_list("models", models, torch.nn.Module)
        self.optimizers: list[torch.optim.Optimizer] = (
            [] if optimizers is None else as_list("optimizers", optimizers, torch.optim.Optimizer)
        )
        level, chosen = level_and_overrides(opt_level, overrides)
        settings = settings_for(level, **chosen)
        groups = groups_of("initialize", process_group)
        if enabled:
            check_models(self.models)
            check_optimizers(self.optimizers)
            check_in_backward(self.models, settings)
            check_shares(self.models, self.optimizers)
            check_dtensors(self.models, settings)
            check_flattened(self.optimizers, bool(groups), settings)
            check_sharding(self.optimizers, settings, shard_masters)
            warn_of_float64(self.models, settings)
            kept = Kept(self.models, settings.keep_fp32, is_marked)
            self._session = _set_up(self.models, self.optimizers, settings, kept, shard_masters)
            sharded_over = [] if shard_masters is None else [shard_masters]
            self._session.agree_over([*groups, *sharded_over])

    @property
    def loss_scalers(self) -> list[_C.LossScaler]:
        """One a loss; empty when not enabled."""
        return self._session.scalers if self._session else []

    def scale_loss(
        self,
        loss: torch.Tensor,
        optimizers: Optimizers | None = None,
        loss_id: int = 0,
        *,
        delay_unscale: bool | None = None,
        delay_overflow_check: bool = False,
    ) -> contextlib.AbstractContextManager[torch.Tensor]:
        """A context that gives the scaled loss, float32 and of the loss's sizes; call its backward
        in it. At the end the grads of master_params() are unscaled, and the loss scale is updated.

        loss: a floating tensor.
        optimizers: all that step a parameter with a grad in this backward; None: all of this
            object.
        loss_id: below num_losses, chooses the scaler.
        delay_unscale: leave grads scaled; a later scale_loss unscales them. None: where the model's
            last forward ran in no_sync() of DistributedDataParallel, which reduces them later.
        delay_overflow_check: leave it to a later scale_loss to update the scale.

        Raises TypeError, IndexError, RuntimeError. After an exception in the context, grads and
        scaler are as before.
        """
        if self._session is None:
            return contextlib.nullcontext(loss)
        chosen = self.optimizers if optimizers is None else optimizers
        states = states_of(chosen, "scale_loss", self._session)
        return scaled_loss(
            self._session, states, loss, loss_id, delay_unscale, delay_overflow_check
        )

    def scale(self, loss: torch.Tensor, loss_id: int = 0) -> torch.Tensor:
        """`loss` times its scale, float32 and of the loss's sizes, for backwards that finish()
        ends: in a pipeline those of other stages too, which have no loss."""
        return loss if self._session is None else scale(self._session, loss, loss_id)

    def finish(self, optimizers: Optimizers | None = None, loss_id: int = 0) -> None:
        """Ends the backwards, one or several, since the optimizers' zero_grad(): unscales and
        checks their grads, and updates the loss scale. See amp.finish.

        optimizers: None: all of this object.
        """
        if self._session is not None:
            chosen = self.optimizers if optimizers is None else optimizers
            finish(self._session, states_of(chosen, "finish", self._session), loss_id)

    def master_params(self) -> Iterator[torch.Tensor]:
        """The tensors that the optimizers step: clip the grads of these, after the backward."""
        return iter(params_of(self.optimizers))

    def refresh_masters(self) -> None:
        """Makes the masters what the model holds now. Needed only after writes that PyTorch does
        not count, through `param.data` or numpy, and without adopt_data_writes."""
        for weights in self._session.weights if self._session else []:
            weights.force_refresh()

    def state_dict(self) -> MutableMapping[str, Any]:
        """The loss scalers' state, as apex.amp lays it out. Empty when not enabled."""
        return self._session.scalers.state_dict() if self._session else OrderedDict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what state_dict() or apex.amp's gave; ignored when not enabled. Raises
        RuntimeError, and changes nothing, where that does not fit."""
        if self._session is not None:
            self._session.scalers.load_state_dict(state_dict)

    def save(self, file: _serialize.File) -> None:
        """Writes everything that training resumes from to a path or a file, which C++ reads too:
        models in float32, optimizers, loss scalers, level. Waits for the device. Raises TypeError
        for state that is not a tensor, number or text."""
        _serialize.save(self._run(), file)

    def load(self, file: _serialize.File) -> None:
        """Takes over what save, here or in C++, wrote of a run of the same level; nothing in the
        file is run. Raises RuntimeError, and changes nothing, where the file does not fit."""
        _serialize.load(self._run(), file)

    def _run(self) -> _serialize.Run:
        return _serialize.run_of(self.models, self.optimizers, self._session)

    def release(self) -> None:
        """Makes the models and optimizers plain float32 ones again; see amp.release."""
        if self._session is not None:
            release(self._session)

    def close(self) -> None:
        """Ends O1's autocast. Models and optimizers stay as they are."""
        if self._session is not None:
            self._session.close()

    def __repr__(self) -> str:
        return describe(self._session)

    def _repr_html_(self) -> str:
        return describe_as_html(self._session)

    def __enter__(self) -> Amp:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _set_up(
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    settings: Settings,
    kept: Kept,
    group: ProcessGroup | None,
) -> Session:
    session = Session(models, one_device(models, optimizers), settings)
    sharded = [] if group is None else to_shard(models, optimizers)
    if group is not None:
        check_same_on_all_ranks(sharded, session.device, group)
        share_start(models, sharded, group)
    announce(settings)
    masters = make_masters(_params_to_cast(models, settings, kept), optimizers)
    for model in models:
        _cast(model, session, kept)
        adopt_model(model, session)
        adopt_parts(model, kept, session)
    if group is not None:
        masters = _shard(optimizers[0], session, sharded, masters, group)
    session.weights = weights_for(optimizers)
    if session.reducer is not None:
        session.reducer.sharded.attach(session.weights[0])
    for optimizer, weights in zip(optimizers, session.weights):
        adopt_optimizer(optimizer, session, weights, masters)
    return session


def _shard(
    optimizer: torch.optim.Optimizer,
    session: Session,
    params: list[torch.Tensor],
    masters: dict[torch.Tensor, torch.Tensor],
    group: ProcessGroup,
) -> dict[torch.Tensor, torch.Tensor]:
    """The masters of what the optimizer steps from now on."""
    sharded, parts = shard_masters_of(optimizer, params, masters, group)
    session.reducer = Reducer(sharded)
    session.reporter.name_pieces((shard.param, shard.piece) for shard in sharded.all_shards())
    return parts


def _params_to_cast(
    models: list[torch.nn.Module], settings: Settings, kept: Kept
) -> Iterator[torch.Tensor]:
    """Those that are about to be rounded, and get masters."""
    properties = settings.properties
    if settings.keeps_masters and properties.cast_model_type is not None:
        for model in models:
            keeps_norms = bool(properties.keep_batchnorm_fp32)
            yield from params_to_cast(model, properties.cast_model_type, keeps_norms, kept)


def _cast(model: torch.nn.Module, session: Session, kept: Kept) -> None:
    properties = session.settings.properties
    if properties.cast_model_type is None:
        return
    keeps_norms = bool(properties.keep_batchnorm_fp32)
    cast_model(model, properties.cast_model_type, keeps_norms, kept)
    if properties.cast_model_type != torch.float32:
        session.hooks.extend(hook_state_dict(model))


def states_of(optimizers: Optimizers, function: str, session: Session | None = None) -> list:
    """The state of each of `optimizers`. Raises RuntimeError, which names `function`, unless
    initialize returned them all, in one call: the first one's, or `session`'s."""
    if isinstance(optimizers, torch.optim.Optimizer):
        optimizers = [optimizers]
    states = [
        state_of(optimizer, f"{function}: expected optimizers[{i}]")
        for i, optimizer in enumerate(optimizers)
    ]
    for i, state in enumerate(states):
        if state.session is not (session or states[0].session):
            raise RuntimeError(
                f"{function}: expected optimizers[{i}] to come from the same initialize as the "
                "others, got one from another"
            )
    return states

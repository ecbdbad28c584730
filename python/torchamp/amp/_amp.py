"""The API of training: Amp, and the same functions without one, which find their session."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch

from torchamp._arguments import listed, module_of
from torchamp._load import _C
from torchamp.amp import _checkpoint
from torchamp.amp._casts.masters import check_optimizer, listed_optimizers, params_of
from torchamp.amp._initialize import check_enabled, prepare
from torchamp.amp._optimizer.loss import (
    DTensorLoss,
    LossContext,
    PlainLoss,
    ScaledLoss,
    end_backwards,
    scaled,
)
from torchamp.amp._optimizer.optimizer import Optimizers, gates, states_of
from torchamp.amp._policy import Policy
from torchamp.amp._release import give_back
from torchamp.amp._run.loss_scalers import LossScalers
from torchamp.amp._run.ranks import ProcessGroups
from torchamp.amp._run.session import (
    Last,
    OptimizerSession,
    Session,
    Telemetry,
    common_session,
    in_training,
    state_of,
)
from torchamp.amp._run.settings import Level, Overrides

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Amp:
    """Prepares models and optimizers for training at an opt level, and owns the loss scalers::

        amp = torchamp.Amp(model, optimizer, opt_level="O2")
        for data, target in batches:
            optimizer.zero_grad()
            with amp.scale_loss(loss_fn(model(data), target)) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()  # skipped after an overflow

    Arguments, and errors, as amp.initialize's; those of a level are the overrides. Methods are
    amp's functions of the same names, by default for all optimizers of this object.

    Objects of this class are independent, except for O1's autocast, which belongs to the thread: it
    lasts until close(), in any thread, or until the models and optimizers are gone.
    """

    models: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    #: None where initialize was disabled. It is an object of its own, for models keep it alive,
    #: and this keeps models alive.
    _session: Session | None

    def __init__(
        self,
        models: torch.nn.Module | list[torch.nn.Module],
        optimizers: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None,
        opt_level: Level | Policy | None = None,
        *,
        enabled: bool = True,
        process_group: ProcessGroups | None = None,
        **overrides: Unpack[Overrides],
    ) -> None:
        check_enabled("enabled", enabled)
        self.models, self.optimizers, self._session = prepare(
            models, optimizers, opt_level, enabled, process_group, overrides
        )

    @property
    def loss_scalers(self) -> list[_C.LossScaler]:
        """One per loss; empty when not enabled."""
        return self._session.scalers if self._session else []

    def scale_loss(
        self,
        loss: torch.Tensor,
        optimizers: Optimizers | None = None,
        loss_id: int = 0,
        *,
        delay_unscale: bool | None = None,
        delay_overflow_check: bool = False,
    ) -> LossContext:
        """See amp.scale_loss."""
        session = self._session
        if session is None:
            return PlainLoss(loss)
        states = self._states("scale_loss", session, optimizers)
        context = DTensorLoss if session.shards else ScaledLoss
        return context(session, states, loss, loss_id, delay_unscale, delay_overflow_check)

    def scale(self, loss: torch.Tensor, loss_id: int = 0) -> torch.Tensor:
        """See amp.scale."""
        return loss if self._session is None else scaled(self._session, loss, loss_id)

    def finish(self, optimizers: Optimizers | None = None, loss_id: int = 0) -> None:
        """See amp.finish."""
        if self._session is not None:
            states = self._states("finish", self._session, optimizers)
            end_backwards(self._session, states, loss_id)

    def _states(
        self, function: str, session: Session, optimizers: Optimizers | None
    ) -> list[OptimizerSession]:
        session.check_not_released(function)
        chosen = self.optimizers if optimizers is None else optimizers
        return states_of(function, chosen, session) or []

    def master_params(self) -> Iterator[torch.Tensor]:
        """See amp.master_params."""
        return itertools.chain.from_iterable([*map(master_params, self.optimizers)])

    def refresh_masters(self) -> None:
        """See amp.refresh_masters."""
        if self._session is None:
            return
        self._session.check_not_released("refresh_masters")
        for state in self._session.members.states:
            state.overwrite_masters()

    def state_dict(self) -> MutableMapping[str, Any]:
        """See amp.state_dict."""
        return self._session.scalers.state_dict() if self._session else OrderedDict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See amp.load_state_dict."""
        if self._session is not None:
            self._session.scalers.load_state_dict(state_dict)

    def save(self, file: _checkpoint.File, extra: Mapping[str, Any] | None = None) -> None:
        """See amp.save."""
        run = _checkpoint.run_of("save", self.models, self.optimizers, self._session)
        _checkpoint.save(run, file, extra)

    def load(self, file: _checkpoint.File) -> dict[str, Any]:
        """See amp.load."""
        run = _checkpoint.run_of("load", self.models, self.optimizers, self._session)
        return _checkpoint.load(run, file)

    def release(self) -> None:
        """See amp.release."""
        if self._session is not None:
            give_back(self._session)

    def close(self) -> None:
        """Ends O1's autocast. Models and optimizers stay as they are: at O1 and O4 the models
        compute in float32 from now on, and scale_loss raises RuntimeError."""
        if self._session is not None:
            self._session.casts.close()

    def __repr__(self) -> str:
        lines = "".join(f"\n  {name}: {value}" for name, value in self._described())
        return f"Amp({lines}\n)" if lines else "Amp(enabled=False)"

    def _described(self) -> list[tuple[str, str]]:
        """Names and values; none if not enabled. Waits for the device, but not while a graph is
        captured."""
        session = self._session
        if session is None:
            return []
        properties = session.settings.properties
        return [
            ("opt_level", properties.opt_level),
            *((name, value) for name, value in properties.describe() if name != "loss scale"),
            ("models", ", ".join(type(model).__name__ for model in session.members.models())),
            ("optimizers", ", ".join(type(each).__name__ for each in session.members.optimizers())),
            *((f"loss scaler {i}", repr(scaler)) for i, scaler in enumerate(session.scalers)),
        ]

    def __enter__(self) -> Amp:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Gives the tensors that `optimizer` steps, group by group: at O2 and O5 the float32 masters of
    the model's 16-bit parameters, of the same sizes; at other levels, and without a master, the
    parameters themselves. The call makes masters and model agree first. From the first call on,
    masters have the model's grads in `.grad` after each scale_loss, unscaled and in float32.

    Args:
        optimizer: one that initialize returned; of another it gives the parameters.

    Raises:
        TypeError: for what has no parameters in groups.
    """
    check_optimizer("master_params", optimizer)
    state = in_training(optimizer)
    if state is not None:
        gates.renew(optimizer)
        state.follow(optimizer, "master_params")
        state.core.bring_together()
        with state.session.shards.mirrored():
            state.core.show_grads()
    return (_C.stepped_for(param) for param in params_of([optimizer]))


def telemetry(optimizer: torch.optim.Optimizer) -> Telemetry:
    """Returns how many steps were taken and skipped since initialize, whether the last was, and the
    loss scales, as known to the host without waiting for the device. On CUDA the last steps may be
    missing. Steps captured into a CUDA graph are counted where amp.graphed has captured them.

    Args:
        optimizer: one that initialize returned.

    Returns:
        The counts by now, which later steps do not change.

    Raises:
        RuntimeError: for an optimizer that initialize did not return, also after
            initialize(enabled=False).
    """
    return state_of("telemetry", optimizer).telemetry()


def refresh_masters(optimizers: Optimizers) -> None:
    """Makes the optimizers' masters what the model holds now. Needed only after writes that PyTorch
    does not count: through `param.data` or numpy. Does nothing after initialize(enabled=False).

    Args:
        optimizers: one or a list, of one initialize.

    Raises:
        RuntimeError: for optimizers that initialize did not return.
    """
    for state in states_of("refresh_masters", optimizers) or []:
        state.core.overwrite_masters()


def state_dict(
    destination: MutableMapping[str, Any] | None = None,
) -> MutableMapping[str, Any]:
    """Returns the state of the last initialize's loss scalers, as apex lays it out:
    {"loss_scaler0": {"loss_scale": float, "unskipped": int}, …}, put into `destination` if given.
    It is empty after initialize(enabled=False)."""
    if Last.is_disabled:
        return OrderedDict() if destination is None else destination
    return _last_scalers("state_dict").state_dict(destination)


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Gives the last initialize's loss scalers the state that state_dict() or apex's gave. Ignored
    after initialize(enabled=False). A call that raises changes nothing.

    Raises:
        RuntimeError: for a state that does not fit.
    """
    if not Last.is_disabled:
        _last_scalers("load_state_dict").load_state_dict(state_dict)


def save(
    models: torch.nn.Module | Iterable[torch.nn.Module],
    optimizers: Optimizers | None,
    file: _checkpoint.File,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Writes models in float32, the optimizers' options and states, loss scalers, level and
    `extra`, which C++ reads too. Waits for the device::

        extra = {"scheduler": scheduler.state_dict(), "epoch": epoch, "rng": torch.get_rng_state()}
        amp.save(model, optimizer, "run.pt", extra)

    Args:
        models: the model that initialize returned, or the list; each may be in DataParallel or
            DistributedDataParallel.
        optimizers: the optimizer, or the list; None where there is none.
        file: a path, where an existing file is replaced at once, or a binary file that is open for
            writing.
        extra: what load returns: tensors, numbers, text and None by name, and lists, tuples and
            dicts of these.

    Raises:
        TypeError: for state that is not a tensor, number or text, for integers in `extra` of more
            than 32 bits, which C++ would not read, and for DTensors.
        RuntimeError: where the file cannot be written, and for optimizers that initialize did not
            return.
    """
    _checkpoint.save(_run_of("save", models, optimizers), file, extra)


def load(
    models: torch.nn.Module | Iterable[torch.nn.Module],
    optimizers: Optimizers | None,
    file: _checkpoint.File,
) -> dict[str, Any]:
    """Gives models and optimizers that initialize returned what save, here or in C++, wrote of
    others of the same level. Nothing in the file is run. A call that raises changes nothing::

        extra = amp.load(model, optimizer, "run.pt")
        scheduler.load_state_dict(extra["scheduler"])
        torch.set_rng_state(extra["rng"])

    Args:
        models: as for save.
        optimizers: as for save.
        file: a path, or a binary file that is open for reading and can seek.

    Returns:
        What save was given as `extra`, tensors on the CPU; {} where there was none.

    Raises:
        RuntimeError: where the file is damaged or does not fit, and for optimizers that initialize
            did not return.
        TypeError: for DTensors.
        OSError: where the path cannot be read.
    """
    return _checkpoint.load(_run_of("load", models, optimizers), file)


def _run_of(
    function: str,
    models: torch.nn.Module | Iterable[torch.nn.Module],
    optimizers: Optimizers | None,
) -> _checkpoint.Run:
    given = listed(function, "models", models)
    modules = [module_of(function, model, f"models[{i}]") for i, model in enumerate(given)]
    chosen = [] if optimizers is None else listed_optimizers(function, optimizers)
    states = states_of(function, chosen)
    session = None if states is None else common_session(function, states)
    return _checkpoint.run_of(function, modules, chosen, session)


def _last_scalers(function: str) -> LossScalers:
    if Last.scalers is None:
        raise RuntimeError(f"{function}: expected initialize to be called first")
    return Last.scalers

"""The state of one initialize, which its models and optimizers share, and that of each optimizer;
stages 4 to 6, around a backward: scale the loss, unscale and check grads, update the scale."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from torchamp._arguments import type_of
from torchamp._load import _C
from torchamp._logging import warn
from torchamp._shards import Shards, is_dtensor, mesh_groups_of, shard_of
from torchamp.amp._casts.autocast import OpenCasts, lasting_casts
from torchamp.amp._casts.masters import LOW_PRECISION, check_optimizer, params_of
from torchamp.amp._run.loss_scalers import LossScalers
from torchamp.amp._run.members import Members
from torchamp.amp._run.notices import Notices
from torchamp.amp._run.ranks import are_sharded
from torchamp.amp._run.settings import Settings
from torchamp.amp._run.unseen_steps import UnseenSteps


@dataclasses.dataclass
class Casts:
    """What casts the ops of the models of one initialize, in the thread that called it, until
    close()."""

    autocast: OpenCasts | None  #: O1's and O4's
    float8: _C.Float8 | None = None  #: products of linears

    def forget_copies(self) -> None:
        """Before a step, a capture or a replay: weights are cast to float8 again."""
        if self.float8 is not None:
            self.float8.forget_copies()

    def close(self) -> None:
        if self.autocast is not None:
            self.autocast.close()
        if self.float8 is not None:
            self.float8.close()


class Session:
    """Settings, loss scalers, masters and casts of one initialize."""

    def __init__(
        self,
        models: list[torch.nn.Module],
        device: torch.device,
        settings: Settings,
    ) -> None:
        self.settings = settings
        self.device = device
        self.scalers: LossScalers = LossScalers(settings, device)
        self.masters: _C.Masters = _C.Masters(settings.keeps_masters)
        if settings.options["adopt_data_writes"]:
            self.masters.adopt_data_writes()
        self.members: Members = Members()
        #: The DTensors that the optimizers step.
        self.shards: Shards = Shards()
        self.notices: Notices = Notices(models, settings.options["verbosity"])
        #: Whether the first loss is yet to come, before which plain models may have been sharded.
        self.awaits_loss: bool = not are_sharded(models)
        self._is_released = False
        self._last_loan: Callable[[], _C.Loan | None] | None = None
        dtype = settings.properties.autocast_type
        types = {param.device.type for model in models for param in model.parameters()}
        self.casts: Casts = Casts(None if dtype is None else OpenCasts(sorted(types), dtype))

    def add_shards(self, params: Sequence[torch.Tensor]) -> None:
        """Adds the DTensors among `params`, which an optimizer of the session steps from now on:
        ranks agree on their overflows."""
        self.shards.add(params)
        self.scalers.agree_over(mesh_groups_of(params))

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
        autocast = self.casts.autocast
        is_closed = autocast is not None and not autocast.is_open
        if is_closed and any(model._torchamp.session is self for model in self.members.models()):
            raise RuntimeError(
                f"{function}: expected an open Amp, got one that close() has ended, whose models "
                "compute in float32; close it after training"
            )

    def check_order(self) -> None:
        """Raises RuntimeError where initialize came before what shards the parameters, so that the
        optimizers step others than the model has. Warns where O1 or O4 of another run casts the
        code around the models. For the first loss alone."""
        models = self.members.models()
        if are_sharded(models):
            raise RuntimeError(
                "scale_loss: expected fully_shard, parallelize_module and FullyShardedDataParallel "
                "before initialize, got a model that was sharded after it, whose parameters no "
                "optimizer steps; shard the model, make the optimizer, then call initialize"
            )
        for dtype in lasting_casts() if models and self.casts.autocast is None else ():
            warn(
                "scale_loss: expected no casts in this thread, got a model of an earlier "
                f"initialize that casts to {dtype} outside of forwards, in loss functions too; end "
                "them by amp.release(model) of that model, or suspend them by amp.disable_casts()",
            )
        self.awaits_loss = False

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

    def let_go(self, but: torch.optim.Optimizer) -> None:
        """Makes optimizers except that one stop stepping what their groups no longer hold."""
        for optimizer in self.members.optimizers() if not self.shards else []:
            state = optimizer._torchamp
            if optimizer is not but and not state.core.holds(optimizer.param_groups):
                state.core.let_go(params_of([optimizer]))

    def tell_skipped(self, skipped: _C.SkippedStep, core: _C.OptimizerState) -> None:
        """Logs a step that was skipped of an optimizer. After the second one in a row whose loss
        was not finite, also where the next forward begins not to be."""
        if self.notices.verbosity == 0:
            return
        self.notices.tell_skipped(skipped, core.model_params(), self.casts.float8)
        if skipped.in_a_row >= 2 and not skipped.is_loss_finite:
            dtype = self.settings.properties.cast_model_type
            self.notices.look_for_nonfinite(self.members.models(), dtype)

    @property
    def open_loan(self) -> _C.Loan | None:
        """What float32_params lends."""
        return _open_loan(self._last_loan)

    def note_loan(self, loan: _C.Loan) -> None:
        """`loan` is about to be opened. An interrupt that drops it ends it."""
        self._last_loan = weakref.ref(loan)
        self.forget_writes()

    def forget_writes(self) -> None:
        """Writes to parameters since the last backward were no step."""
        for optimizer in self.members.optimizers():
            optimizer._torchamp.unseen_steps.forget()

    def publish_masters(self) -> None:
        """Copies masters that the program has written to the models, for a reader of them."""
        for state in self.members.states:
            state.publish_masters()

    def close_if_left(self) -> None:
        """Ends the casts where later calls of initialize have taken all of its models."""
        if all(model._torchamp.session is not self for model in self.members.models()):
            self.casts.close()

    def end(self) -> None:
        """Forgets models and optimizers, which are plain again."""
        self._is_released = True
        self.casts.close()
        self.notices.end()
        self.members.remove_hooks()
        self.members = Members()
        self.shards = Shards()


def _open_loan(last: Callable[[], _C.Loan | None] | None) -> _C.Loan | None:
    loan = last() if last is not None else None
    return loan if loan is not None and loan.is_open else None


class Last:
    """The last initialize, which functions without a model or an optimizer refer to."""

    is_disabled = False

    #: Optimizers that initialize was given with enabled=False.
    disabled_optimizers: weakref.WeakSet = weakref.WeakSet()

    #: Its loss scalers, also once its models and optimizers are gone.
    scalers: LossScalers | None = None

    #: Gives its session, as long as one of its models or optimizers exists.
    session: Callable[[], Session | None] = staticmethod(lambda: None)


def is_disabled(optimizers: list[torch.optim.Optimizer]) -> bool:
    """Whether initialize was given them, or where there are none was last called, with
    enabled=False."""
    if not optimizers:
        return Last.is_disabled
    if any(hasattr(optimizer, "_torchamp") for optimizer in optimizers):
        return False
    return Last.is_disabled or all(each in Last.disabled_optimizers for each in optimizers)


class OptimizerSession:
    """What one optimizer steps, and what is reported of its steps."""

    #: The ones of all sessions.
    known: weakref.WeakSet[OptimizerSession] = weakref.WeakSet()

    #: The optimizers that initialize was not given, by id, and how many groups they had when they
    #: stepped no master. Of no use once that changes what an optimizer of a session steps.
    strangers: ClassVar[dict[int, int]] = {}

    def __init__(self, session: Session) -> None:
        self.session = session
        self.report = _C.LateReport()
        self.core = _C.OptimizerState(session.masters, self.report)
        #: The last that have lent the optimizer its masters.
        self._last_step: Callable[[], _C.Step | None] | None = None
        self._last_loan: Callable[[], _C.Loan | None] | None = None
        self.unseen_steps = UnseenSteps()
        #: The first parameter that it trains, where initialize left that in float32.
        self.float32_param: Callable[[], torch.Tensor | None] | None = None
        #: The state dict that is being loaded.
        self.loaded: dict[str, Any] | None = None
        #: Names of states that the optimizer's own steps make in 16 bits.
        self.narrow_names: set[str] = set()
        #: Called before each step.
        self.observers: list[Callable[[], None]] = []
        session.members.states.append(self.core)
        self.known.add(self)

    def __reduce__(self) -> tuple:
        """Copies and pickles of the optimizer belong to no session, and have None instead."""
        return type(None), ()

    def follow(self, optimizer: torch.optim.Optimizer, function: str) -> None:
        """Steps what the groups hold now, which the program may have edited. Raises ValueError,
        which names `function`, for a parameter whose master another optimizer steps."""
        is_own = vars(optimizer).get("_torchamp") is self
        if not is_own or self.core.holds(optimizer.param_groups):
            return
        params = params_of([optimizer])
        shards = [shard_of(param) for param in params]
        if self.session.shards and list(map(id, shards)) == list(map(id, self.core.model_params())):
            return
        self.strangers.clear()
        self.session.let_go(but=optimizer)
        self.session.add_shards([param for param in params if not self.core.steps(shard_of(param))])
        for param, shard in zip(params, shards):
            if is_dtensor(param):
                self.core.add(function, shard)
        self.core.follow(function, shards)
        if self.core.warning:
            warn(self.core.warning)

    def note_float32(self, params: Sequence[torch.Tensor]) -> None:
        """Before check_float32(), of what the optimizer steps."""
        first = next((param for param in params if param.requires_grad), None)
        if first is not None and first.dtype == torch.float32:
            self.float32_param = weakref.ref(first)

    def check_float32(self, param: torch.Tensor | None) -> None:
        """Raises RuntimeError where the program has cast a model that trained in float32, which it
        does in 16 bits and without masters from then on. Whole models are meant: one parameter is
        asked."""
        if param is not None and param.dtype in LOW_PRECISION:
            name = self.session.notices.name_of(param)
            raise RuntimeError(
                f"scale_loss: expected parameter {name} to be in float32 as "
                f"initialize left it, got {param.dtype}; remove the call that casts the model, as "
                "model.bfloat16(), or take O2 or O5, which cast it"
            )

    @property
    def open_step(self) -> _C.Step | None:
        """The step that has lent the optimizer its masters."""
        step = self._last_step() if self._last_step is not None else None
        return step if step is not None and step.is_open else None

    @property
    def open_loans(self) -> list[_C.Loan]:
        """What lends its masters outside of steps, the outermost last."""
        if self.session._last_loan is None and self._last_loan is None:
            return []
        loans = self.session.open_loan, _open_loan(self._last_loan)
        return [loan for loan in loans if loan is not None]

    def note_loan(self, loan: _C.Loan) -> None:
        """`loan`, to a method of the optimizer's, is about to be opened."""
        self._last_loan = weakref.ref(loan)
        self.unseen_steps.forget()

    def note_overflow(self) -> bool:
        """Whether the open step is to be skipped. Waits for the device."""
        overflowed = self.core.has_overflowed()
        if (step := self.open_step) is not None:
            step.overflowed = overflowed
        return overflowed

    def note_step(self, step: _C.Step) -> None:
        """`step` is about to be opened. An interrupt that drops it ends it."""
        self._last_step = weakref.ref(step)
        self.unseen_steps.forget()
        self.session.casts.forget_copies()

    def check_skips(self) -> None:
        """Reports the steps that are known by now to be skipped. Raises RuntimeError after
        max_consecutive_skips in a row."""
        limit = self.session.settings.options["max_consecutive_skips"]
        known = self.report.flush()
        for skipped in known:
            self.session.tell_skipped(skipped, self.core)
        for skipped in known:
            if limit is not None:
                skipped.check_in_a_row(limit)

    def telemetry(self) -> Telemetry:
        """What is known of the steps by now."""
        for skipped in self.report.flush():
            self.session.tell_skipped(skipped, self.core)
        return Telemetry(*self.report.known())


def in_training(optimizer: Any) -> OptimizerSession | None:
    """What torchamp knows of an optimizer that initialize returned; None of others."""
    own = getattr(optimizer, "__dict__", {}).get("_torchamp")
    return own if isinstance(own, OptimizerSession) else None


def session_in_training(model: Any) -> Session | None:
    """The session of a model that initialize returned; None of others."""
    return getattr(getattr(model, "_torchamp", None), "session", None)


def state_of(function: str, optimizer: Any, name: str = "optimizer") -> OptimizerSession:
    """What torchamp knows of `optimizer`. Raises TypeError if it is none, and RuntimeError if
    initialize did not return it, which name the function and the argument."""
    check_optimizer(function, optimizer, name)
    state = in_training(optimizer)
    if state is None:
        inner = [
            each
            for each, value in getattr(optimizer, "__dict__", {}).items()
            if in_training(value) is not None
        ]
        remedy = f"pass its {inner[0]}" if inner else "pass it to initialize with its model"
        raise RuntimeError(
            f"{function}: expected {name} to be an optimizer that initialize returned, got "
            f"{type_of(optimizer)} that it did not; {remedy}"
        )
    return state


def common_session(function: str, states: Sequence[OptimizerSession] = ()) -> Session:
    """The session of `states`, or of the last initialize. Raises RuntimeError, which names
    `function`, if that is gone."""
    session = states[0].session if states else Last.session()
    if session is None:
        raise RuntimeError(
            f"{function}: expected initialize to be called first, with models and optimizers "
            "that still exist"
        )
    return session


@dataclasses.dataclass(frozen=True)
class Telemetry:
    """What the host knows of an optimizer's steps. On CUDA the last ones may be missing."""

    steps: int = 0  #: since initialize, with those that were skipped
    skipped_steps: int = 0
    stepped: bool | None = None  #: whether the last one known was a step, and not skipped
    loss_scales: tuple[float, ...] = ()  #: one a loss, as they were at that step

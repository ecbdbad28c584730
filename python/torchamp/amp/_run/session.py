"""The state of one initialize, which its models and optimizers share, and that of each optimizer;
stages 4 to 6, around a backward: scale the loss, unscale and check grads, update the scale."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.utils.hooks import RemovableHandle

from torchamp._arguments import type_of
from torchamp._load import _C
from torchamp._logging import log, warn
from torchamp._shards import Shards, is_dtensor, mesh_groups_of, shard_of
from torchamp.amp._casts.autocast import OpenCasts, lasting_casts
from torchamp.amp._casts.masters import LOW_PRECISION, check_optimizer, params_of
from torchamp.amp._casts.nonfinite import FirstNonfinite
from torchamp.amp._run.loss_scalers import LossScalers
from torchamp.amp._run.ranks import DataParallel, agreement_over, are_sharded
from torchamp.amp._run.settings import Settings
from torchamp.amp._run.unseen_steps import UnseenSteps


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
        self.masters: _C.Masters = _C.Masters(settings.keeps_masters)
        if settings.options["adopt_data_writes"]:
            self.masters.adopt_data_writes()
        #: One an optimizer. Kept alive here, for as long as a model or an optimizer of the session
        #: lives.
        self.states: list[_C.OptimizerState] = []
        #: One a model.
        self.data_parallel: list[DataParallel] = []
        #: The DTensors that the optimizers step.
        self.shards: Shards = Shards()
        #: The handles of the hooks that the models' and optimizers' state dicts have.
        self.hooks: list[RemovableHandle] = []
        #: Nothing is logged at 0.
        self.verbosity: int = settings.options["verbosity"]
        #: What looks at one forward, once, after two losses in a row that were not finite.
        self.nonfinite: FirstNonfinite | None = None
        #: The ranks of these agree on overflows.
        self._groups: list[Any] = []
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._parts: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._names = names_of(models)
        #: Whether the first loss is yet to come, before which plain models may have been sharded.
        self.awaits_loss: bool = not are_sharded(models)
        self._is_released = False
        self._last_loan: Callable[[], _C.Loan | None] | None = None
        dtype = settings.properties.autocast_type
        types = {param.device.type for model in models for param in model.parameters()}
        #: Products of linears in float8.
        self.float8: _C.Float8 | None = None
        self.casts: OpenCasts | None = None if dtype is None else OpenCasts(sorted(types), dtype)

    def add_model(self, model: torch.nn.Module) -> DataParallel:
        """Returns what its forwards report to."""
        self._models.append(weakref.ref(model))
        self.data_parallel.append(DataParallel(model, self.scalers))
        return self.data_parallel[-1]

    def add_part(self, module: torch.nn.Module) -> None:
        """Adds a module in a model whose own calls cast."""
        self._parts.append(weakref.ref(module))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def add_shards(self, params: Sequence[torch.Tensor]) -> None:
        """Adds the DTensors among `params`, which an optimizer of the session steps from now on:
        ranks agree on their overflows."""
        self.shards.add(params)
        self.agree_over(mesh_groups_of(params))

    def agree_over(self, groups: Sequence[Any]) -> None:
        """Makes the ranks of `groups`, which are ProcessGroups, and of those of earlier calls agree
        on overflows. All ranks must name them in the same order."""
        new = [group for group in dict.fromkeys(groups) if group not in self._groups]
        if not new:
            return
        self._groups += new
        agreement = agreement_over(tuple(self._groups))
        for scaler in self.scalers:
            scaler.set_agreement(agreement)

    def models(self) -> list[Any]:
        """The models that still exist."""
        return _existing(self._models)

    def parts(self) -> list[Any]:
        """The modules in models whose own calls cast, as far as they still exist."""
        return _existing(self._parts)

    def optimizers(self) -> list[Any]:
        """The optimizers that still exist."""
        return _existing(self._optimizers)

    def name_of(self, param: torch.Tensor) -> str:
        """Its name in quotes, or its sizes where no model has it."""
        name = self._names.get(id(param))
        return f"one of sizes {list(param.shape)}" if name is None else repr(name)

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
        """Raises RuntimeError where initialize came before what shards the parameters, so that the
        optimizers step others than the model has. Warns where O1 or O4 of another run casts the
        code around the models. For the first loss alone."""
        models = self.models()
        if are_sharded(models):
            raise RuntimeError(
                "scale_loss: expected fully_shard, parallelize_module and FullyShardedDataParallel "
                "before initialize, got a model that was sharded after it, whose parameters no "
                "optimizer steps; shard the model, make the optimizer, then call initialize"
            )
        for dtype in lasting_casts() if models and self.casts is None else ():
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
        for optimizer in self.optimizers() if not self.shards else []:
            state = optimizer._torchamp
            if optimizer is not but and not state.core.holds(optimizer.param_groups):
                state.core.let_go(params_of([optimizer]))

    def look_for_nonfinite(self, skipped: _C.SkippedStep) -> None:
        """After the second skipped step in a row whose loss was not finite, looks at the forward
        of the next one, and tells what it has found once that is known."""
        if skipped.is_loss_finite or skipped.in_a_row < 2:
            return
        if self.nonfinite is None:
            dtype = self.settings.properties.cast_model_type
            self.nonfinite = FirstNonfinite(self.models(), dtype)
        else:
            self.nonfinite.tell()

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
        for optimizer in self.optimizers():
            optimizer._torchamp.unseen_steps.forget()

    def publish_masters(self) -> None:
        """Copies masters that the program has written to the models, for a reader of them."""
        for state in self.states:
            state.publish_masters()

    def forget_copies(self) -> None:
        """Before a step, a capture or a replay: weights are cast to float8 again."""
        if self.float8 is not None:
            self.float8.forget_copies()

    def close(self) -> None:
        """Ends O1's autocast and float8."""
        if self.casts is not None:
            self.casts.close()
        if self.float8 is not None:
            self.float8.close()

    def close_if_left(self) -> None:
        """Ends it where later calls of initialize have taken all of its models."""
        if all(model._torchamp.session is not self for model in self.models()):
            self.close()

    def end(self) -> None:
        """Forgets models and optimizers, which are plain again."""
        self._is_released = True
        self.close()
        if self.nonfinite is not None:
            self.nonfinite.end()
        for hook in self.hooks:
            hook.remove()
        self.hooks, self.states, self.data_parallel = [], [], []
        self.shards = Shards()
        self._models, self._parts, self._optimizers = [], [], []


def _open_loan(last: Callable[[], _C.Loan | None] | None) -> _C.Loan | None:
    loan = last() if last is not None else None
    return loan if loan is not None and loan.is_open else None


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
        session.states.append(self.core)
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
            raise RuntimeError(
                f"scale_loss: expected parameter {self.session.name_of(param)} to be in float32 as "
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
        self.session.forget_copies()

    def check_skips(self) -> None:
        """Reports the steps that are known by now to be skipped. Raises RuntimeError after
        max_consecutive_skips in a row."""
        limit = self.session.settings.options["max_consecutive_skips"]
        known = self.report.flush()
        for skipped in known:
            self._report(skipped)
        for skipped in known:
            if limit is not None:
                skipped.check_in_a_row(limit)

    def _report(self, skipped: _C.SkippedStep) -> None:
        if self.session.verbosity == 0:
            return
        params, names = self.core.model_params(), self.session._names
        first = [names.get(id(params[i]), f"parameter {i}") for i in skipped.first]
        float8 = self.session.float8
        in_float8 = None if float8 is None else float8.nonfinite
        for level, message in skipped.messages(first, in_float8):
            log(level, message)
        self.session.look_for_nonfinite(skipped)

    def telemetry(self) -> Telemetry:
        """What is known of the steps by now."""
        for skipped in self.report.flush():
            self._report(skipped)
        return Telemetry(*self.report.known())


def in_training(optimizer: Any) -> OptimizerSession | None:
    """What torchamp knows of an optimizer that initialize returned; None of others."""
    own = getattr(optimizer, "__dict__", {}).get("_torchamp")
    return own if isinstance(own, OptimizerSession) else None


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

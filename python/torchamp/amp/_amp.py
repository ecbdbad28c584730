"""The API: Amp, and the functions of apex.amp, which find the Amp that they are about."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

import torch

from torchamp._arguments import expect, is_boolean
from torchamp._load import _C
from torchamp.amp import _release, _scale_loss, _serialize
from torchamp.amp._checks import as_list, uncompiled
from torchamp.amp._describe import describe, describe_as_html
from torchamp.amp._loss_scalers import LossScalers
from torchamp.amp._masters import check_optimizer, params_of
from torchamp.amp._optimizer import Telemetry, state_of, suppress_accesses
from torchamp.amp._policy import Policy, level_and_overrides
from torchamp.amp._ranks.agreement import ProcessGroups, groups_of
from torchamp.amp._session import Session
from torchamp.amp._set_up import set_up
from torchamp.amp._settings import Level, Overrides, named, settings_for, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

Optimizers = Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]]
ModelsT = TypeVar("ModelsT", bound=Union[torch.nn.Module, Sequence[torch.nn.Module]])
OptimizersT = TypeVar("OptimizersT", bound=Union[torch.optim.Optimizer, Sequence])


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
    lasts until close(), or until the models and optimizers are gone. If another thread than its own
    ends it, it ends soon in the main thread, and elsewhere when the thread next uses torchamp.
    """

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
        _check_enabled("enabled", enabled)
        self.models: list[torch.nn.Module] = as_list("models", models, torch.nn.Module)
        self.optimizers: list[torch.optim.Optimizer] = (
            [] if optimizers is None else as_list("optimizers", optimizers, torch.optim.Optimizer)
        )
        if overrides.get("max_loss_scale", 0.0) is None:
            overrides["max_loss_scale"] = math.inf
        level, chosen = level_and_overrides(opt_level, overrides)
        settings = settings_for(level, **chosen)
        groups = groups_of("initialize", process_group)
        self._session: Session | None = (
            set_up(self.models, self.optimizers, settings, groups) if enabled else None
        )

    @classmethod
    def _of(
        cls,
        session: Session | None,
        models: list[torch.nn.Module],
        optimizers: list[torch.optim.Optimizer],
    ) -> Amp:
        """Of some that an earlier initialize returned; session: None if it was disabled."""
        amp = cls.__new__(cls)
        amp._session, amp.models, amp.optimizers = session, models, optimizers
        return amp

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
    ) -> _scale_loss.LossContext:
        """See amp.scale_loss."""
        if self._session is None:
            return _scale_loss.PlainLoss(loss)
        _scale_loss.check_loss("scale_loss", loss)
        self._session.check_trains("scale_loss")
        states = self._states("scale_loss", optimizers, self._session)
        self._session.check_order()
        kind = _scale_loss.DTensorLoss if self._session.shards else _scale_loss.ScaledLoss
        return kind(self._session, states, loss, loss_id, delay_unscale, delay_overflow_check)

    def scale(self, loss: torch.Tensor, loss_id: int = 0) -> torch.Tensor:
        """See amp.scale."""
        return loss if self._session is None else _scale_loss.scale(self._session, loss, loss_id)

    def finish(self, optimizers: Optimizers | None = None, loss_id: int = 0) -> None:
        """See amp.finish."""
        if self._session is not None:
            states = self._states("finish", optimizers, self._session)
            _scale_loss.finish(self._session, states, loss_id)

    def _states(self, function: str, optimizers: Optimizers | None, session: Session) -> list:
        return states_of(self.optimizers if optimizers is None else optimizers, function, session)

    def master_params(self) -> Iterator[torch.Tensor]:
        """See amp.master_params."""
        for optimizer in self.optimizers:
            yield from master_params(optimizer)

    def refresh_masters(self) -> None:
        """See amp.refresh_masters."""
        if self._session is None:
            return
        self._session.check_not_released("refresh_masters")
        for state in self._session.states:
            state.overwrite_masters()

    def state_dict(self) -> MutableMapping[str, Any]:
        """See amp.state_dict."""
        return self._session.scalers.state_dict() if self._session else OrderedDict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See amp.load_state_dict."""
        if self._session is not None:
            self._session.scalers.load_state_dict(state_dict)

    def save(self, file: _serialize.File, extra: Mapping[str, Any] | None = None) -> None:
        """See amp.save."""
        _serialize.save(self._run("save"), file, extra)

    def load(self, file: _serialize.File) -> dict[str, Any]:
        """See amp.load."""
        return _serialize.load(self._run("load"), file)

    def _run(self, function: str) -> _serialize.Run:
        if self._session is not None:
            self._session.check_not_released(function)
        return _serialize.run_of(self.models, self.optimizers, self._session)

    def release(self) -> None:
        """See amp.release."""
        if self._session is not None:
            _release.release(self._session)

    def close(self) -> None:
        """Ends O1's autocast. Models and optimizers stay as they are: at O1 and O4 the models
        compute in float32 from now on, and scale_loss raises RuntimeError."""
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


class Last:
    """The last initialize, which functions without a model or an optimizer refer to."""

    is_disabled = False

    #: Optimizers that initialize was given with enabled=False.
    disabled_optimizers: weakref.WeakSet = weakref.WeakSet()

    #: Its loss scalers, also once its models and optimizers are gone.
    scalers: LossScalers | None = None

    #: Gives its session, as long as one of its models or optimizers exists.
    session: Callable[[], Session | None] = staticmethod(lambda: None)


@overload
def initialize(
    models: ModelsT,
    optimizers: None = None,
    enabled: bool = True,
    opt_level: Level | Policy | None = None,
    *,
    process_group: ProcessGroups | None = None,
    **overrides: Unpack[Overrides],
) -> ModelsT: ...


@overload
def initialize(
    models: ModelsT,
    optimizers: OptimizersT,
    enabled: bool = True,
    opt_level: Level | Policy | None = None,
    *,
    process_group: ProcessGroups | None = None,
    **overrides: Unpack[Overrides],
) -> tuple[ModelsT, OptimizersT]: ...


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: Level | Policy | None = None,
    *apex_s: Any,
    process_group: ProcessGroups | None = None,
    **overrides: Any,
) -> Any:
    """Prepares models and optimizers for training at `opt_level`, or at what the arguments from
    cast_model_type to loss_scale make of it where they are not None.

    A model that is cast, to float32 at O0, casts the floating tensors of its arguments and outputs.
    It finds them in mappings, sequences, dataclasses and objects that have a method `to`, of which
    it makes copies. What forward writes to tensors, dicts, lists, deques and attributes of its
    arguments is written to the caller's after it, but not in graphs of torch.compile, and not
    writes through `.data`. A call that raises changes nothing.

    Args:
        models: a module on its device, or a list of them; changed in place. What trains is float32.
            Of what torch.compile returned, here and in all of amp, it is the module that it was
            given.
        optimizers: an optimizer of their parameters, or a list of them; changed in place.
        enabled: False leaves everything alone, and scale_loss gives the loss as it is.
        opt_level: "O0" float32, "O1" autocast to float16, "O2" float16 with float32 master weights,
            "O3" float16, "O4" and "O5" as O1 and O2 in bfloat16; or an amp.Policy. None: that of
            set_global_policy, or O1.
        cast_model_type: the dtype of the model; False: it is not cast.
        patch_torch_functions: whether ops are cast, by autocast.
        keep_batchnorm_fp32: whether batch norms stay float32; also "True" and "False".
        master_weights: whether optimizers step float32 masters.
        loss_scale: "dynamic", or a number, which is fixed.
        cast_model_outputs: the dtype of the model's outputs; by default float32 where the model is
            cast.
        num_losses: how many losses have a scale of their own.
        verbosity: 0 is silent.
        min_loss_scale: of a dynamic scale; None: 2**-10.
        max_loss_scale: of a dynamic scale; None: there is none.
        adopt_data_writes: True: every step detects elements of the model that were written
            bypassing PyTorch's version counters, e.g. by `param.data`, and copies them to the
            masters. Where the model was not written, such writes to masters are kept.
        materialize_master_grads: True: every backward makes the masters' grads; by default those of
            fused optimizers are deferred until the program accesses the masters.
        max_consecutive_skips: the number of skipped steps in a row at which a step, or on CUDA a
            later call, raises RuntimeError with the reason. None: training goes on.
        keep_fp32: modules that compute in float32 at every level: names, classes, or functions of
            name and module that return whether to keep it. Names of buffers, which stay in
            float32, and of forward's arguments, which are cast to float32.
        process_group: the torch.distributed ProcessGroup, or a list of those of a mesh, whose ranks
            have to skip the same steps though their grads differ: an overflow on one of them skips
            the step of all. DistributedDataParallel does not need it. None: ranks decide by
            themselves.

    Returns:
        Models and optimizers, the very objects, in the shape they were given, which is `model` or
        `(model, optimizer)`, each a list where a list was given.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an argument whose value no level takes.
        AssertionError: for another keep_batchnorm_fp32, as in apex.
        RuntimeError: for an unknown level, options that contradict it, and models and optimizers
            that do not fit it.
    """
    _check_enabled("enabled, the third argument,", enabled)
    overrides = named(*apex_s, **overrides)
    returned = models if optimizers is None else (models, optimizers)
    Last.is_disabled = not enabled
    if not enabled:
        Last.disabled_optimizers.update(listed("initialize", "optimizers", optimizers or []))
        return returned
    session = Amp(models, optimizers, opt_level, process_group=process_group, **overrides)._session
    assert session is not None
    Last.session, Last.scalers = weakref.ref(session), session.scalers
    return returned


show_options(initialize)


def _check_enabled(argument: str, enabled: Any) -> None:
    if not is_boolean(enabled):
        meant = f"; write opt_level={enabled!r}" if isinstance(enabled, str) else ""
        raise TypeError(
            f"initialize: expected {argument} to be True or False, got {enabled!r}{meant}"
        )


def release(models: torch.nn.Module | Iterable[torch.nn.Module]) -> None:
    """The inverse of initialize, to train, save or initialize the models in another way: all models
    and optimizers of the initialize that returned `models` are plain float32 ones again. They stay
    the same objects. Parameters have their masters' values, bit for bit, and optimizers step them
    with the states that they have. Grads are dropped, as by zero_grad(), and scale_loss knows the
    optimizers no longer. Plain models stay as they are: copies, models that are released, and those
    of initialize(enabled=False). A call that raises changes nothing.

    Args:
        models: a model that initialize returned, or a list of them.

    Raises:
        RuntimeError: within scale_loss, for models that contain one that initialize returned, and
            where the program has given one of them another class or dtype since.
        ValueError: where the groups of two optimizers hold one master.
    """
    session = _release.session_of(map(uncompiled, listed("release", "models", models)))
    if session is not None:
        _release.release(session)


def scale_loss(
    loss: torch.Tensor,
    optimizers: Optimizers,
    loss_id: int = 0,
    model: torch.nn.Module | None = None,
    delay_unscale: bool | None = None,
    delay_overflow_check: bool = False,
) -> _scale_loss.LossContext:
    """A context that gives the scaled loss, float32 and of the loss's sizes; call its backward in
    it, or in one call: `amp.scale_loss(loss, optimizer).backward()`. At the end the grads that
    `optimizers` step by are unscaled and checked, and the loss scale is updated. After an overflow
    the next step of each is skipped. After an exception in the context, grads and scale are as
    before.

    Args:
        loss: a floating tensor.
        optimizers: one or a list: all that step a parameter with a grad in this backward.
        loss_id: below initialize's num_losses; chooses the loss scale.
        model: accepted as in apex, and not needed.
        delay_unscale: True leaves grads scaled; a later scale_loss unscales them. None: where the
            model's last forward ran in no_sync() of DistributedDataParallel, which reduces the
            grads later.
        delay_overflow_check: True leaves it to a later scale_loss to update the scale.

    Raises:
        TypeError: for a loss that is not a floating tensor, and for optimizers that are none.
        IndexError: for a loss_id that is not below num_losses.
        RuntimeError: for optimizers that initialize did not return, or not in one call, and within
            another scale_loss of them.
    """
    return _of(optimizers, "scale_loss").scale_loss(
        loss,
        loss_id=loss_id,
        delay_unscale=delay_unscale,
        delay_overflow_check=delay_overflow_check,
    )


def disable_casts() -> contextlib.AbstractContextManager[None]:
    """A context in which the casts of O1 and O4 are suspended in this thread. A torch.autocast of
    the program stays active."""
    return _C.ShieldFromAutocast()


def scale(loss: torch.Tensor, loss_id: int = 0) -> torch.Tensor:
    """`loss` times its scale of the last initialize, float32 and of the loss's sizes, for backwards
    that finish() ends: where their loss is on another rank, as in a pipeline, or where several
    micro-batches make up a step. After initialize(enabled=False) it is `loss` itself::

        amp.scale(loss).backward()  # on the last stage; the others pass grads on
        amp.finish(optimizer)       # on every stage
        optimizer.step()

    Args:
        loss: a floating tensor.
        loss_id: below initialize's num_losses; chooses the loss scale.

    Raises:
        TypeError: for a loss that is not a floating tensor.
        IndexError: for a loss_id that is not below num_losses.
        RuntimeError: where there was no initialize.
    """
    return _of([], "scale").scale(loss, loss_id)


def finish(optimizers: Optimizers, loss_id: int = 0) -> None:
    """Ends the backwards, one or several, since the optimizers' zero_grad(): their grads, of losses
    that scale() gave here or on another rank, are unscaled and checked, and the loss scale is
    updated. All stages of a pipeline call it once per step, with the process_group of all stages
    given to initialize. Does nothing after initialize(enabled=False). A call that raises changes
    nothing.

    Args:
        optimizers: one or a list: all that step a parameter with a grad in these backwards.
        loss_id: below initialize's num_losses; chooses the loss scale.

    Raises:
        TypeError: for a loss_id that is not an integer.
        IndexError: for a loss_id that is not below num_losses.
        RuntimeError: for grads that an earlier finish() or scale_loss has unscaled, within
            scale_loss, and for optimizers that initialize did not return, or not in one call.
    """
    _of(optimizers, "finish").finish(loss_id=loss_id)


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The tensors that `optimizer` steps, group by group: float32 masters of the model's 16-bit
    parameters at O2 and O5, the parameters themselves elsewhere. After scale_loss their grads are
    unscaled; `amp.clip_grad_norm_` clips them without making those of fused optimizers.

    Raises:
        TypeError: for what has no parameters in groups.
    """
    check_optimizer("master_params", optimizer)
    return _master_params(optimizer)


def _master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    state = getattr(optimizer, "_torchamp", None)
    if state is not None:
        state.accesses.show()
    for group in optimizer.param_groups:
        yield from group["params"]


def clip_grad_norm_(
    optimizers: Optimizers, max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scales the grads that `optimizers` step by so that their total norm is at most `max_norm`.
    Called between the last scale_loss and the step. With a fused optimizer the clipping costs no
    pass. Grads that only skipped steps would use do not count. After initialize(enabled=False) it
    is `torch.nn.utils.clip_grad_norm_`.

    Args:
        optimizers: one or a list, of one initialize. The norm is that of all their grads together.
        max_norm: a number that is at least 0.
        norm_type: of the p-norm; inf for the maximum. Others than 2 compute the master grads that
            fused optimizers defer.

    Returns:
        The norm before clipping, a scalar on the device, without waiting. If all steps are to be
        skipped, it is not finite.

    Raises:
        TypeError: for a max_norm that is not a number.
        ValueError: for a max_norm that is negative or NaN, and for a norm_type other than 2 with
            DTensors.
        RuntimeError: where grads are still scaled, and for optimizers that initialize did not
            return.
    """
    chosen = listed("clip_grad_norm_", "optimizers", optimizers)
    if _is_disabled(chosen):
        return torch.nn.utils.clip_grad_norm_(params_of(chosen), max_norm, norm_type)
    states = states_of(chosen, "clip_grad_norm_")
    with suppress_accesses(states):
        return _scale_loss.clip_grad_norm(states, params_of(chosen), max_norm, norm_type)


def clip_grad_value_(optimizers: Optimizers, clip_value: float) -> None:
    """Clamps every element of the grads that `optimizers` step by to [-clip_value, clip_value].
    Called between the last scale_loss and the step. Computes the master grads that fused optimizers
    defer. After initialize(enabled=False) it is
    `torch.nn.utils.clip_grad_value_`.

    Args:
        optimizers: one or a list, of one initialize.
        clip_value: a number that is at least 0.

    Raises:
        TypeError: for a clip_value that is not a number.
        ValueError: for a clip_value that is negative or NaN.
        RuntimeError: where grads are still scaled, and for optimizers that initialize did not
            return.
    """
    chosen = listed("clip_grad_value_", "optimizers", optimizers)
    if _is_disabled(chosen):
        return torch.nn.utils.clip_grad_value_(params_of(chosen), clip_value)
    states = states_of(chosen, "clip_grad_value_")
    with suppress_accesses(states):
        return _scale_loss.clip_grad_value(states, params_of(chosen), clip_value)


def telemetry(optimizer: torch.optim.Optimizer) -> Telemetry:
    """How many steps were taken and skipped since the first call of this, whether the last was, and
    the loss scales, as known to the host without waiting for the device. The first call starts the
    counting, and returns zeros. On CUDA the last steps may be missing. Steps captured into a CUDA
    graph are not counted.

    Args:
        optimizer: one that initialize returned.

    Returns:
        The counts by now, which later steps do not change.

    Raises:
        RuntimeError: for an optimizer that initialize did not return, also after
            initialize(enabled=False).
    """
    return state_of(optimizer, "telemetry: expected optimizer").telemetry()


def refresh_masters(optimizers: Optimizers) -> None:
    """Makes the optimizers' masters what the model holds now. Needed only after writes that PyTorch
    does not count: through `param.data` or numpy.

    Args:
        optimizers: one or a list, of one initialize.

    Raises:
        RuntimeError: for optimizers that initialize did not return, also after
            initialize(enabled=False).
    """
    for state in states_of(optimizers, "refresh_masters"):
        state.core.overwrite_masters()


def state_dict(
    destination: MutableMapping[str, Any] | None = None,
) -> MutableMapping[str, Any]:
    """The state of the last initialize's loss scalers, as apex lays it out: {"loss_scaler0":
    {"loss_scale": float, "unskipped": int}, …}, put into `destination` if given. Empty after
    initialize(enabled=False)."""
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
    file: _serialize.File,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Writes models in float32, the optimizers' options and states, loss scalers, level and
    `extra`, which C++ reads too. Waits for the device::

        extra = {"scheduler": scheduler.state_dict(), "epoch": epoch, "rng": amp.get_rng_state()}
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
    _of(optimizers, "save", models).save(file, extra)


def load(
    models: torch.nn.Module | Iterable[torch.nn.Module],
    optimizers: Optimizers | None,
    file: _serialize.File,
) -> dict[str, Any]:
    """Gives models and optimizers that initialize returned what save, here or in C++, wrote of
    others of the same level. Nothing in the file is run. A call that raises changes nothing::

        extra = amp.load(model, optimizer, "run.pt")
        scheduler.load_state_dict(extra["scheduler"])
        amp.set_rng_state(extra["rng"])

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
    return _of(optimizers, "load", models).load(file)


def _of(optimizers: Optimizers | None, function: str, models: Any = ()) -> Amp:
    """That of `optimizers`; where there are none, of the last initialize."""
    if optimizers is None:
        optimizers = []
    chosen = listed(function, "optimizers", optimizers)
    models = [uncompiled(model) for model in listed(function, "models", models)]
    for i, model in enumerate(models):
        is_right = isinstance(model, torch.nn.Module)
        expect(is_right, function, f"models[{i}]", "a torch.nn.Module", model)
    if _is_disabled(chosen):
        return Amp._of(None, models, chosen)
    states = _known_states(chosen, function)
    return Amp._of(states[0].session if states else _last_session(function), models, chosen)


def listed(function: str, name: str, values: Any) -> list:
    """Models or optimizers, or one, as a list. Raises TypeError, which names the function and the
    argument, for a tensor and for what cannot be iterated over."""
    if isinstance(values, (torch.nn.Module, torch.optim.Optimizer)):
        return [values]
    is_right = isinstance(values, Iterable) and not isinstance(values, torch.Tensor)
    expect(is_right, function, name, "one of them or a list", values)
    return list(values)


def _is_disabled(optimizers: list[torch.optim.Optimizer]) -> bool:
    if not optimizers:
        return Last.is_disabled
    if any(hasattr(optimizer, "_torchamp") for optimizer in optimizers):
        return False
    return Last.is_disabled or all(each in Last.disabled_optimizers for each in optimizers)


def _last_session(function: str) -> Session:
    session = Last.session()
    if session is None:
        raise RuntimeError(
            f"{function}: expected initialize to be called first, with models and optimizers that "
            "still exist"
        )
    return session


def _last_scalers(function: str) -> LossScalers:
    if Last.scalers is None:
        raise RuntimeError(f"{function}: expected initialize to be called first")
    return Last.scalers


def _known_states(optimizers: list[torch.optim.Optimizer], function: str) -> list:
    return [
        state_of(optimizer, f"{function}: expected optimizers[{i}]")
        for i, optimizer in enumerate(optimizers)
    ]


def states_of(optimizers: Optimizers, function: str, session: Session | None = None) -> list:
    """The state of each of `optimizers`. Raises RuntimeError, which names `function`, unless
    initialize returned them all, in one call: the first one's, or `session`'s."""
    optimizers = listed(function, "optimizers", optimizers)
    states = _known_states(optimizers, function)
    for i, state in enumerate(states):
        if state.session is not (session or states[0].session):
            raise RuntimeError(
                f"{function}: expected optimizers[{i}] to come from the same initialize as the "
                "others, got one from another"
            )
    for optimizer, state in zip(optimizers, states):
        state.follow(optimizer, function)
    return states

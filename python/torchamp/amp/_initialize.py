"""Stages 1 to 3: initialize checks everything, casts models and gives optimizers their masters."""

from __future__ import annotations

import logging
import math
import traceback
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

import torch

from torchamp._arguments import is_boolean
from torchamp._load import _C
from torchamp._logging import log, warn
from torchamp.amp import _checks
from torchamp.amp._casts.cast import (
    Float32Parts,
    buffers_to_cast,
    cast_model,
    params_to_cast,
    rules_of,
    stays_float32,
)
from torchamp.amp._casts.float8 import choose
from torchamp.amp._casts.masters import LOW_PRECISION, listed_optimizers, params_of
from torchamp.amp._model.model import adopt_model
from torchamp.amp._model.state_dict import hook_state_dict, let_models_be_exported
from torchamp.amp._optimizer.optimizer import adopt_optimizer, inner_of, steps_fused
from torchamp.amp._policy import Policy, is_marked, level_and_overrides
from torchamp.amp._run.ranks import ProcessGroups, check_dtensors, check_flattened, groups_of
from torchamp.amp._run.session import Last, Session
from torchamp.amp._run.settings import (
    DESCRIPTIONS,
    IN_BFLOAT16,
    Level,
    Overrides,
    Settings,
    named,
    settings_for,
    show_options,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

ModelsT = TypeVar("ModelsT", bound=Union[torch.nn.Module, Sequence[torch.nn.Module]])
OptimizersT = TypeVar("OptimizersT", bound=Union[torch.optim.Optimizer, Sequence])


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
    models: torch.nn.Module | Sequence[torch.nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    enabled: bool = True,
    opt_level: Level | Policy | None = None,
    *by_place: Any,
    process_group: ProcessGroups | None = None,
    **overrides: Any,
) -> Any:
    """Prepares models and optimizers for training at `opt_level`. Arguments from cast_model_type to
    loss_scale replace properties of the level where they are not None.

    A model that is cast, to float32 at O0, casts the floating tensors of its arguments and outputs.
    It finds them in mappings, sequences, dataclasses, SimpleNamespaces and objects that have a
    method `to`, and puts them into copies of these. What forward writes to tensors, dicts, lists,
    deques and attributes of its arguments is written to the caller's after the forward; this does
    not hold in graphs of torch.compile, nor for writes through `.data`. A call that raises changes
    nothing.

    Args:
        models: a torch.nn.Module on its device, or a list of them. They are changed in place.
            Parameters that train must be float32; at O5 they may be bfloat16. All functions of amp
            take the object that torch.compile returned for the module that it was given.
        optimizers: an optimizer of the models' parameters, or a list of them. They are changed in
            place.
        enabled: False changes nothing, and makes scale_loss give the loss as it is.
        opt_level: "O0" trains in float32, "O1" by autocast to float16, "O2" in float16 with float32
            master weights, "O3" in float16; "O4" and "O5" are O1 and O2 in bfloat16. An amp.Policy
            names one of these. None: the policy of set_global_policy, or else O1.
        cast_model_type: the dtype that the model is cast to. False: it is not cast.
        patch_torch_functions: whether autocast casts ops.
        keep_batchnorm_fp32: whether batch norms stay in float32. Takes "True" and "False" too.
        master_weights: whether optimizers step float32 masters of 16-bit parameters.
        loss_scale: "dynamic", or a positive number for a fixed scale.
        cast_model_outputs: the dtype of the model's outputs. None: float32 where the model is cast.
        num_losses: the number of losses that have a scale of their own.
        verbosity: 1 logs what initialize does, and skipped steps. 0 logs nothing.
        min_loss_scale: the least value of a dynamic scale. None: 2**-10.
        max_loss_scale: the greatest value of a dynamic scale. None: it has no limit.
        adopt_data_writes: True makes every step look for elements of the model that were written
            without PyTorch's knowledge, as by `param.data`, and copy them to the masters. Where the
            model was not written, such writes to masters are kept.
        materialize_master_grads: False, with a fused optimizer and scaled losses, leaves grads of
            the model scaled until the step, which moves 30 bytes a parameter instead of 36. Clip by
            `amp.clip_grad_norm_`. The first call of `amp.master_params` ends this. A grad that the
            program writes raises RuntimeError at the step, unless it is written by `.data`.
        max_consecutive_skips: the number of skipped steps in a row at which a step, or on CUDA a
            later call, raises RuntimeError with the reason. None: training goes on.
        float8: at O4 and O5, True computes the products of linears in float8, of those whose
            weights are 1,024 by 1,024 or more in multiples of 16, but for the last of a model and
            those that share an embedding's. A list of names of modules: the linears in them, at any
            size in multiples of 16. Experimental: nothing has been measured on a GPU.
        keep_fp32: what stays in float32 at every level: modules, by their names, by classes, or by
            functions of a name and a module that return whether to keep it; buffers, by their
            names; arguments of forward, by their names, which are cast to float32.
        process_group: a ProcessGroup of torch.distributed, or a list of those of a mesh, whose
            ranks skip the same steps though their grads differ: an overflow on one of them skips
            the step of all. DistributedDataParallel needs none. None: each rank decides by itself.

    Returns:
        The models, or a pair of models and optimizers where there are optimizers: the same objects,
        each in a list where a list was given.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an argument whose value no level takes.
        AssertionError: for another keep_batchnorm_fp32, as in apex.
        RuntimeError: for an unknown level, options that contradict it, and models and optimizers
            that do not fit it.
    """
    check_enabled("enabled, the third argument,", enabled)
    overrides = named(*by_place, **overrides)
    returned = models if optimizers is None else (models, optimizers)
    Last.is_disabled = not enabled
    if not enabled:
        Last.disabled_optimizers.update(listed_optimizers("initialize", optimizers or []))
        return returned
    _, _, session = prepare(models, optimizers, opt_level, enabled, process_group, overrides)
    assert session is not None
    Last.session, Last.scalers = weakref.ref(session), session.scalers
    return returned


show_options(initialize)


def check_enabled(argument: str, enabled: Any) -> None:
    if not is_boolean(enabled):
        meant = _meant_by(enabled) if isinstance(enabled, str) else ""
        raise TypeError(
            f"initialize: expected {argument} to be True or False, got {enabled!r}{meant}"
        )


def _meant_by(enabled: str) -> str:
    if enabled in DESCRIPTIONS:
        return f"; write opt_level={enabled!r}"
    word = enabled.capitalize()
    return f"; write enabled={word}" if word in ("True", "False") else ""


def prepare(
    models: Any,
    optimizers: Any,
    opt_level: Level | Policy | None,
    enabled: bool,
    process_group: ProcessGroups | None,
    overrides: Any,
) -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer], Session | None]:
    """Does what initialize does. Returns models and optimizers as lists, and their session, which
    is None where it is not enabled."""
    models = _checks.as_list("models", models, torch.nn.Module)
    if optimizers is None:
        optimizers = []
    optimizers = _checks.as_list("optimizers", optimizers, torch.optim.Optimizer)
    if overrides.get("max_loss_scale", 0.0) is None:
        overrides["max_loss_scale"] = math.inf
    level, chosen = level_and_overrides(opt_level, overrides)
    settings = settings_for(level, **chosen)
    groups = groups_of("initialize", process_group)
    session = _set_up(models, optimizers, settings, groups) if enabled else None
    return models, optimizers, session


def _set_up(
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    settings: Settings,
    groups: Sequence[Any],
) -> Session:
    """Checks everything, then changes models and optimizers, or, after an exception, nothing. The
    ranks of `groups` agree."""
    _checks.check_are_trained(models, optimizers, settings)
    _checks.check_models(models)
    _checks.check_casts(settings)
    _checks.check_optimizers(optimizers)
    _checks.check_closures(optimizers, settings)
    _checks.check_in_backward(models, settings)
    check_dtensors(models, settings)
    check_flattened(optimizers, bool(groups), settings)
    dtype = settings.properties.cast_model_type
    rules = rules_of("keep_fp32", settings.options["keep_fp32"])
    marks = [is_marked, stays_float32] if dtype in LOW_PRECISION else [is_marked]
    kept = Float32Parts(models, rules, marks)
    _checks.check_scripted(models, settings, kept)
    keeps_norms = bool(settings.properties.keep_batchnorm_fp32)
    cast: list[torch.Tensor] = []
    buffers: list[str] = []
    for model in models:
        if dtype is not None:
            buffers += buffers_to_cast(model, dtype, keeps_norms, kept)
            cast += params_to_cast(model, dtype, keeps_norms, kept)
    given = _C.GivenParams(
        [list(model.named_parameters()) for model in models],
        [params_of([optimizer]) for optimizer in optimizers],
        cast,
        settings.properties,
        [i for i, each in enumerate(optimizers) if steps_fused(each) and each.stochastic_rounding],
    )
    given.check()
    linears, chosen = choose(models, kept, settings.options["float8"])
    for text in given.warnings():
        warn(text)
    snapshot = _Snapshot(models, optimizers)
    session = Session(models, given.device(), settings)
    try:
        if session.notices.verbosity > 0:
            _log_settings(settings, session.device)
            rounded = "" if dtype is None else _C.rounded_buffers(buffers, dtype)
            for text in filter(None, (given.frozen_masters(), rounded, chosen)):
                log(logging.INFO, text)
        masters = {param: _C.make_master(param) for param in given.mastered()}
        for model in models:
            if dtype is not None:
                cast_model(model, dtype, keeps_norms, kept)
            if dtype in LOW_PRECISION:
                session.members.hooks.extend(hook_state_dict(model))
                let_models_be_exported()
            adopt_model(model, session, kept)
        for optimizer in optimizers:
            adopt_optimizer(optimizer, session, masters)
        if linears:
            casts, is_told = session.casts, session.notices.verbosity > 0
            casts.float8 = _C.Float8(linears, casts.autocast is not None, is_told)
        session.scalers.agree_over(groups)
    except BaseException as error:
        session.end()
        snapshot.restore()
        traceback.clear_frames(error.__traceback__)  # where variables hold masters
        raise
    return session


def _log_settings(settings: Settings, device: torch.device) -> None:
    properties = settings.properties
    lines = [f"opt_level {properties.opt_level}: {DESCRIPTIONS[properties.opt_level]}"]

    def add(name: str, option: str) -> None:
        override = "  (override)" if settings.options.get(option) is not None else ""
        lines.append(f"  {name:<22} : {getattr(properties, name)}{override}")

    for name in ("cast_model_type", "keep_batchnorm_fp32", "master_weights", "loss_scale"):
        add(name, name)
    add("autocast_type", "patch_torch_functions")
    is_float16 = torch.float16 in (properties.cast_model_type, properties.autocast_type)
    if is_float16 and device.type == "cpu":
        other = IN_BFLOAT16[properties.opt_level]
        lines.append(f"  float16 is slow on most CPUs; {other} computes in bfloat16")
    log(logging.INFO, "\n".join(lines))


class _Snapshot:
    """Models and optimizers before initialize, which come back if it raises."""

    def __init__(
        self, models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
    ) -> None:
        self._tensors = [
            (tensor, tensor.data, tensor.grad)
            for model in models
            for tensor in (*model.parameters(), *model.buffers())
        ]
        modules = [module for model in models for module in model.modules()]
        stepping = [each for given in optimizers for each in (given, *inner_of(given))]
        self._objects = [(each, type(each), dict(vars(each))) for each in (*modules, *stepping)]
        self._states = [(each.state, dict(each.state)) for each in optimizers]

    def restore(self) -> None:
        for each, kind, attributes in self._objects:
            if type(each) is not kind:
                each.__class__ = kind
            _refill(vars(each), attributes)
        for tensor, data, grad in self._tensors:
            tensor.grad = None
            _C.set_data(tensor, data)
            tensor.grad = grad
        for held, states in self._states:
            _refill(held, states)


def _refill(held: dict, items: dict[Any, Any]) -> None:
    held.clear()
    held.update(items)

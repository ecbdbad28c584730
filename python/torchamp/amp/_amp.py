"""One object that owns what initialize makes, and what initialize demands before it changes
anything."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Union

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchamp._load import _C
from torchamp.amp import _serialize
from torchamp.amp._masters import make_masters, params_of, weights_for
from torchamp.amp._model import AmpModel, adopt_model, cast_model, hook_state_dict, params_to_cast
from torchamp.amp._optimizer import AmpOptimizer, adopt_optimizer, state_of
from torchamp.amp._report import announce
from torchamp.amp._scale_loss import ScaledLoss
from torchamp.amp._session import Session
from torchamp.amp._settings import Settings, settings_for

Optimizers = Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]]


class Amp:
    """Prepares models and optimizers for training at an opt level, and owns the loss scalers.

        amp = torchamp.Amp(model, optimizer, opt_level="O2")
        for data, target in batches:
            optimizer.zero_grad()
            with amp.scale_loss(loss_fn(model(data), target)) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()  # skipped after an overflow

    models: a float32 module on its device, or a list of them; changed in place.
    optimizers: an optimizer of their parameters, a list of them, or None; changed in place.
    opt_level: "O0" float32, "O1" autocast to float16, "O2" float16 with float32 master weights,
        "O3" float16, "O4" and "O5" as O1 and O2 in bfloat16.
    enabled: False leaves everything alone, and scale_loss gives the loss as it is.
    overrides: what to change of the level: cast_model_type, patch_torch_functions,
        keep_batchnorm_fp32, master_weights, loss_scale ("dynamic" or a number); also
        cast_model_outputs, num_losses, min_loss_scale (by default 2**-10), max_loss_scale,
        max_consecutive_skips (the number of skipped steps in a row at which a step, or on CUDA a
        later call, raises RuntimeError with the reason; by default training goes on), verbosity
        (0 is silent), adopt_data_writes (True: every step detects elements of the model that were written
        bypassing PyTorch's version counters, e.g. by `param.data`, and copies them to the masters).

    Raises TypeError, ValueError or RuntimeError, and changes nothing, where an argument is wrong.
    Objects of this class are independent, except for O1's autocast, which belongs to the thread: it
    lasts until close(), or until the models and optimizers are gone.
    """

    def __init__(
        self,
        models: torch.nn.Module | list[torch.nn.Module],
        optimizers: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None,
        opt_level: str = "O1",
        *,
        enabled: bool = True,
        **overrides: Any,
    ) -> None:
        self._session: Session | None = None
        self.models = _as_list("models", models, torch.nn.Module)
        self.optimizers = (
            [] if optimizers is None else _as_list("optimizers", optimizers, torch.optim.Optimizer)
        )
        settings = settings_for(opt_level, **overrides)
        if enabled:
            _check_models(self.models)
            _check_optimizers(self.optimizers)
            self._session = _set_up(self.models, self.optimizers, settings)

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
        delay_unscale: bool = False,
        delay_overflow_check: bool = False,
    ) -> contextlib.AbstractContextManager[torch.Tensor]:
        """A context that gives the scaled loss, float32 and of the loss's sizes; call its backward
        in it. At the end the grads of master_params() are unscaled, and the loss scale is updated.

        loss: floating tensor. optimizers: all that step a parameter with a grad in this
        backward; None: all of this object. loss_id: below num_losses, chooses the scaler.
        delay_unscale: leave grads scaled; a later scale_loss unscales them.
        delay_overflow_check: leave it to a later scale_loss to update the scale.

        Raises TypeError, IndexError, RuntimeError. After an exception in the context, grads and
        scaler are as before.
        """
        if self._session is None:
            return contextlib.nullcontext(loss)
        chosen = self.optimizers if optimizers is None else optimizers
        states = states_of(chosen, self._session)
        return ScaledLoss(self._session, states, loss, loss_id, delay_unscale, delay_overflow_check)

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
        return self._session.state_dict() if self._session else OrderedDict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what state_dict() or apex.amp's gave; ignored when not enabled. Raises
        RuntimeError, and changes nothing, where that does not fit."""
        if self._session is not None:
            self._session.load_state_dict(state_dict)

    def save(self, file: _serialize.File) -> None:
        """Writes everything that training resumes from to a path or a file, which C++ reads too:
        models in float32, optimizers, loss scalers, level. Waits for the device. Raises TypeError
        for state that is no tensor, number or text."""
        _serialize.save(self._run(), file)

    def load(self, file: _serialize.File) -> None:
        """Takes over what save, here or in C++, wrote of a run of the same level; nothing in the
        file is run. Raises RuntimeError, and changes nothing, where the file does not fit."""
        _serialize.load(self._run(), file)

    def _run(self) -> _serialize.Run:
        return _serialize.run_of(self.models, self.optimizers, self._session)

    def close(self) -> None:
        """Ends O1's autocast. Models and optimizers stay as they are."""
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Amp:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _set_up(
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    settings: Settings,
) -> Session:
    session = Session(models, _one_device(models, optimizers), settings)
    announce(settings)
    masters = make_masters(_params_to_cast(models, settings), optimizers)
    for model in models:
        _cast(model, settings)
        adopt_model(model, session)
    session.weights = weights_for(optimizers)
    for optimizer, weights in zip(optimizers, session.weights):
        adopt_optimizer(optimizer, session, weights, masters)
    return session


def _params_to_cast(models: list[torch.nn.Module], settings: Settings) -> Iterator[torch.Tensor]:
    """Those that are about to be rounded, and get masters."""
    properties = settings.properties
    if settings.keeps_masters and properties.cast_model_type is not None:
        for model in models:
            kept = bool(properties.keep_batchnorm_fp32)
            yield from params_to_cast(model, properties.cast_model_type, kept)


def _cast(model: torch.nn.Module, settings: Settings) -> None:
    properties = settings.properties
    if properties.cast_model_type is None:
        return
    cast_model(model, properties.cast_model_type, bool(properties.keep_batchnorm_fp32))
    if properties.cast_model_type != torch.float32:
        hook_state_dict(model)


def states_of(optimizers: Optimizers, session: Session | None = None) -> list:
    """The state of each of `optimizers`. Raises RuntimeError unless initialize returned
    them all, in one call: the first one's, or `session`'s."""
    if isinstance(optimizers, torch.optim.Optimizer):
        optimizers = [optimizers]
    states = [
        state_of(optimizer, f"scale_loss: expected optimizers[{i}]")
        for i, optimizer in enumerate(optimizers)
    ]
    for i, state in enumerate(states):
        if state.session is not (session or states[0].session):
            raise RuntimeError(
                f"scale_loss: expected optimizers[{i}] to come from the same initialize as the "
                "others, got one from another"
            )
    return states


def _as_list(argument: str, value: Any, kind: type) -> list:
    """`value`, a `kind` or a list of them, as a list. Raises TypeError for anything else."""
    values = value if isinstance(value, list) else [value]
    for i, element in enumerate(values):
        if not isinstance(element, kind):
            where = f"{argument}[{i}]" if isinstance(value, list) else argument
            raise TypeError(
                f"initialize: expected {where} to be a {_name(kind)}"
                f"{'' if isinstance(value, list) else ' or a list of them'}, "
                f"got {_described(element)}"
            )
    return values


def _name(kind: type) -> str:
    return f"torch.{'nn' if issubclass(kind, torch.nn.Module) else 'optim'}.{kind.__name__}"


def _described(value: Any) -> str:
    hint = "; pass a list: list(...)" if isinstance(value, tuple) else ""
    return f"{type(value).__name__}{hint}"


def _check_models(models: list[torch.nn.Module]) -> None:
    """Raises TypeError or RuntimeError for a model that initialize cannot take."""
    for i, model in enumerate(models):
        where = f"models[{i}]"
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            raise RuntimeError(
                f"initialize: expected {where} to be an unwrapped model, got one wrapped in "
                f"{type(model).__name__}; initialize first, then wrap"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise TypeError(
                f"initialize: expected {where} to be a Python model, got a "
                f"{type(model).__name__}; initialize first, then trace"
            )
        _check_is_new(where, model)
        _check_tensors(where, model)


def _check_is_new(where: str, model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, AmpModel) and not _may_start_again(module, module is model):
            part = f"{where}.{name}" if name else where
            raise RuntimeError(
                f"initialize: expected {part} ({type(module).__name__}) not to be initialized "
                "already, but it is; pass all models and optimizers that belong together to one "
                "call"
            )


def _may_start_again(module: AmpModel, is_whole: bool) -> bool:
    """Whether a model of an earlier initialize can be initialized again: its parameters are still
    float32, and, for a part of a model, its forward is unchanged."""
    state = module._torchamp
    return state.input_type in (None, torch.float32) if is_whole else not state.changes_forward


def _check_tensors(where: str, model: torch.nn.Module) -> None:
    for kind, named in (
        ("parameter", model.named_parameters()),
        ("buffer", model.named_buffers()),
    ):
        for name, tensor in named:
            if torch.nn.parameter.is_lazy(tensor):
                raise RuntimeError(
                    f"initialize: expected {kind} {name!r} of {where} to be materialized, got a "
                    "lazy one; run a forward first"
                )
            if tensor.dtype == torch.float16:
                raise RuntimeError(
                    f"initialize: expected {where} to be a float32 model, got {kind} {name!r} in "
                    "float16; initialize casts the model itself: remove the call of half()"
                )


def _check_optimizers(optimizers: list[torch.optim.Optimizer]) -> None:
    """Raises TypeError or RuntimeError for an optimizer that initialize cannot take."""
    for i, optimizer in enumerate(optimizers):
        name = type(optimizer).__name__
        if isinstance(optimizer, AmpOptimizer):
            raise RuntimeError(
                f"initialize: expected optimizers[{i}] ({name}) not to be initialized already, "
                "but it is"
            )
        if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
            raise TypeError(
                f"initialize: expected optimizers[{i}] to step the parameters in its param_groups, "
                f"got a {name}, which does not"
            )


def _one_device(
    models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
) -> torch.device:
    """The device of the optimizers' parameters; without any, of the first model parameter, else
    the CPU. Raises RuntimeError if the optimizers have several."""
    found = None
    for i, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for param in group["params"]:
                if found is not None and param.device != found:
                    raise RuntimeError(
                        "initialize: expected the parameters of all optimizers to be on one "
                        f"device, {found}, got one on {param.device} in optimizers[{i}]"
                    )
                found = param.device
    params = (param for model in models for param in model.parameters())
    return found or next((param.device for param in params), torch.device("cpu"))

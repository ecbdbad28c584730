"""Adagrad."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from torchamp._arguments import expect, is_number
from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer


class FusedAdagrad(FusedOptimizer):
    """torch.optim.Adagrad in one pass. State dicts go to and from torch.optim.Adagrad's.

    Args:
        params, lr, state_dtype, stochastic_rounding: as FusedOptimizer's.
        lr_decay, weight_decay, eps, maximize: as in torch.optim.Adagrad.
        initial_accumulator_value: where the sums of squares start, which are then made with the
            group instead of by the first step.
        decoupled_weight_decay: weight decay shrinks the parameters; apex's adagrad_w_mode.
    """

    options: _C.OptionTable = _C.OptionTable("FusedAdagrad")
    _largest_algorithm = _C.StepAlgorithm.ADAGRAD

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        self._init_with(locals())

    def _check_options(self, values: dict[str, Any]) -> None:
        super()._check_options(values)
        where, name = type(self).__name__, "initial_accumulator_value"
        expect(is_number(values[name]), where, name, "a number", values[name])
        _C.check_minimum(where, name, values[name], 0.0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's.

        Raises:
            ValueError: for values outside of their range.
        """
        super().add_param_group(param_group)
        self._start_sums()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As FusedOptimizer's; sums that it lacks start anew."""
        super().load_state_dict(state_dict)
        self._start_sums()

    def _start_sums(self) -> None:
        """Outside of steps, which may be captured. Steps make sums that start at 0."""
        for group in self.param_groups:
            start = group.get("initial_accumulator_value", 0.0)
            for param in group["params"] if start != 0 else []:
                if param not in self.state:
                    dtype = self._dtype_of_states(param)
                    sums = torch.full_like(param, start, dtype=dtype, requires_grad=False)
                    self.state[param] = {"step": torch.zeros(()), "sum": sums}

"""Stochastic gradient descent, and LARS, which gives each tensor a learning rate of its own."""

from __future__ import annotations

from typing import Any

from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer, check_at_least, lr_of


class FusedSGD(FusedOptimizer):
    """torch.optim.SGD in one pass.

    Args:
        params: parameters or groups.
        lr: float or scalar tensor.
        momentum, dampening, weight_decay, nesterov, maximize: as torch.optim.SGD.
        decay_after_momentum: weight decay is added to the step instead of the grads; apex's
            wd_after_momentum.

    Raises ValueError for values outside of their range. State dicts go to and from
    torch.optim.SGD's.
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        decay_after_momentum: bool = False,
        _trust: dict[str, Any] | None = None,
        **storage: Any,
    ) -> None:
        name = type(self).__name__
        check_at_least(name, 0.0, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0.0 or dampening != 0.0):
            raise ValueError(
                f"{name}: expected a positive momentum and no dampening with nesterov, "
                f"got momentum {momentum} and dampening {dampening}"
            )
        defaults = dict(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
            decay_after_momentum=decay_after_momentum,
            **(_trust or {}),
        )
        super().__init__(params, defaults, **storage)

    def algorithm_of(self, group: dict[str, Any]) -> _C.StepAlgorithm:
        return _C.StepAlgorithm.MOMENTUM if group["momentum"] != 0 else _C.StepAlgorithm.SGD

    def hyper_of(self, group: dict[str, Any]) -> list[float]:
        return [
            lr_of(group),
            group["momentum"],
            group["dampening"],
            group["weight_decay"],
            group["nesterov"],
            group["maximize"],
            group.get("decay_after_momentum", False),
        ]


class FusedLARS(FusedSGD):
    """Layer-wise adaptive rate scaling (You et al., arXiv:1708.03888) on SGD.

    A tensor's learning rate is trust_coefficient · ‖param‖ / (‖grad‖ + weight_decay · ‖param‖ +
    eps), times the group's; with `clip` (LARC) it is at most the group's. Tensors of norm zero take
    the group's.

    Args:
        params, lr, momentum, …: as FusedSGD's.
        trust_coefficient: how much of its own length a tensor may move.
        eps: for the division.
        clip: LARC instead of LARS.
    """

    _takes_split_masters = False

    def __init__(
        self,
        params: Any,
        lr: Any,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        clip: bool = False,
        maximize: bool = False,
        **storage: Any,
    ) -> None:
        check_at_least(type(self).__name__, 0.0, trust_coefficient=trust_coefficient, eps=eps)
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            maximize=maximize,
            _trust=dict(trust_coefficient=trust_coefficient, eps=eps, clip=clip),
            **storage,
        )

    def hyper_of(self, group: dict[str, Any]) -> list[float]:
        return [*super().hyper_of(group), group["trust_coefficient"], group["eps"], group["clip"]]

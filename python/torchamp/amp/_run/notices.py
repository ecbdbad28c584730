"""What is logged of the steps of one initialize."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchamp._load import _C
from torchamp._logging import log
from torchamp._shards import shard_of
from torchamp.amp._casts.nonfinite import FirstNonfinite


class Notices:
    """Those of one session, by its parameters' names. None are logged at a verbosity of 0."""

    def __init__(self, models: list[torch.nn.Module], verbosity: int) -> None:
        self.verbosity = verbosity
        self._names = _names_of(models)
        #: What looks at one forward, once, after two losses in a row that were not finite.
        self.nonfinite: FirstNonfinite | None = None

    def name_of(self, param: torch.Tensor) -> str:
        """Its name in quotes, or its sizes where no model has it."""
        name = self._names.get(id(param))
        return f"one of sizes {list(param.shape)}" if name is None else repr(name)

    def tell_skipped(
        self,
        skipped: _C.SkippedStep,
        params: Sequence[torch.Tensor],
        float8: _C.Float8 | None,
    ) -> None:
        """Logs it. `params`: what the optimizer steps."""
        first = [self._names.get(id(params[i]), f"parameter {i}") for i in skipped.first]
        in_float8 = None if float8 is None else float8.nonfinite
        for level, message in skipped.messages(first, in_float8):
            log(level, message)

    def look_for_nonfinite(self, models: list[torch.nn.Module], dtype: torch.dtype | None) -> None:
        """Looks at the next forward, and tells later what it has found, once that is known."""
        if self.nonfinite is None:
            self.nonfinite = FirstNonfinite(models, dtype)
        else:
            self.nonfinite.tell()

    def end(self) -> None:
        if self.nonfinite is not None:
            self.nonfinite.end()


def _names_of(models: list[torch.nn.Module]) -> dict[int, str]:
    """The models' parameters' names by id; with the model's number if there are several."""
    names: dict[int, str] = {}
    for i, model in enumerate(models):
        prefix = f"models[{i}]." if len(models) > 1 else ""
        for name, param in model.named_parameters():
            names.setdefault(id(shard_of(param)), prefix + name)
    return names

"""The params of a group whose masters need no grads, as long as nobody looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Watch:
    """Whether anyone but torchamp has looked at an optimizer's masters."""

    def __init__(self, weights: Any) -> None:
        self._weights = weights
        self._looking_away = 0

    def notice(self) -> None:
        """Someone looks: from now on, and for the last backward, master grads are made. What was
        seen may be kept, so there is no way back."""
        if not self._looking_away and self._weights.lazy:
            self._weights.lazy = False

    def look_away(self) -> Watch:
        """A context for torchamp's own looks, which do not count."""
        return self

    def __enter__(self) -> None:
        self._looking_away += 1

    def __exit__(self, *exception: Any) -> None:
        self._looking_away -= 1


class MasterList(list):
    """`group["params"]`, telling a Watch when its elements are read."""

    def __init__(self, params: list[torch.Tensor], watch: Watch) -> None:
        super().__init__(params)
        self._watch = watch

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._watch.notice()
        return super().__iter__()

    def __reversed__(self) -> Iterator[torch.Tensor]:
        self._watch.notice()
        return super().__reversed__()

    def __getitem__(self, index: Any) -> Any:
        self._watch.notice()
        return super().__getitem__(index)

    def __add__(self, other: list) -> list:
        return list(self) + other

    def __radd__(self, other: list) -> list:
        return other + list(self)

    def copy(self) -> list:
        return list(self)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        """Copies and pickles are plain lists."""
        return list, (list(self),)

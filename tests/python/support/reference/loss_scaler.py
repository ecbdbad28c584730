"""apex.amp's dynamic loss scaling, on the host, and recovery from a collapse."""

import dataclasses


@dataclasses.dataclass
class LossScaler:
    loss_scale: float = 2.0**16
    unskipped: int = 0
    window: int = 2000
    min_loss_scale: float = 2.0**-10
    max_loss_scale: float = 2.0**24

    def update(self, overflow: bool) -> None:
        if overflow:
            self._back_off()
        elif self.unskipped < 0:
            self._grow()
            self.unskipped = 0 if self.loss_scale == self.max_loss_scale else self.unskipped
        else:
            self.unskipped += 1
            if self.unskipped == self.window:
                self._grow()
                self.unskipped = 0

    def _back_off(self) -> None:
        self.unskipped = min(self.unskipped + 1, 0)
        self.loss_scale /= 2
        if self.loss_scale < self.min_loss_scale:
            self.loss_scale = self.min_loss_scale
            if self.min_loss_scale <= 1:
                self.unskipped = -3

    def _grow(self) -> None:
        self.loss_scale = min(self.max_loss_scale, self.loss_scale * 2)

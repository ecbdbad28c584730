"""apex.amp's dynamic loss scaling, on the host."""

import dataclasses


@dataclasses.dataclass
class LossScaler:
    loss_scale: float = 2.0**16
    unskipped: int = 0
    window: int = 2000
    min_loss_scale: float = 0.0
    max_loss_scale: float = 2.0**24

    def update(self, overflow: bool) -> None:
        if overflow:
            self.loss_scale = max(self.loss_scale / 2, self.min_loss_scale)
            self.unskipped = 0
        else:
            self.unskipped += 1
        if self.unskipped == self.window:
            self.loss_scale = min(self.max_loss_scale, self.loss_scale * 2)
            self.unskipped = 0

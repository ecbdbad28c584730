"""A framework's trainer: detects apex by import, configured by a dict."""

import argparse
import importlib
import importlib.util
import io

import torch
import torch.nn as nn

CONFIG = {
    "amp_args": {"loss_scale": "128.0", "min_loss_scale": 1.0, "max_loss_scale": 2.0**15},
    "optimizer": {"name": "apex.optimizers.FusedAdam", "lr": 0.02, "adam_w_mode": True},
}
parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default=None)
args = parser.parse_args()
torch.manual_seed(14)

has_apex = importlib.util.find_spec("apex") is not None
assert has_apex
import apex
from apex import amp
from apex.parallel import DistributedDataParallel as ApexDDP  # noqa: F401

assert "state_dict" in amp.__dict__ and "load_state_dict" in amp.__dict__ and amp.__path__


class Trainer:
    def __init__(self, config, opt_level):
        self.model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
        options = dict(config["optimizer"])
        module, name = options.pop("name").rsplit(".", 1)
        make = getattr(importlib.import_module(module), name)
        self.optimizer = make(self.model.parameters(), **options)
        amp_args = dict(config["amp_args"], opt_level=opt_level, enabled=opt_level != "O0")
        _, optimizers = amp.initialize(
            models=self.model, optimizers=[self.optimizer], num_losses=1, verbosity=0, **amp_args
        )
        assert optimizers == [self.optimizer]
        self.use_amp = hasattr(self.optimizer, "_amp_stash")

    def fit(self, steps):
        for step in range(steps):
            x = torch.randn(16, 4)
            loss = nn.functional.cross_entropy(self.model(x).float(), (x.sum(1) > 0).long())
            self.optimizer.zero_grad()
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward(create_graph=False)
            self.optimizer.step()
            print("loss", loss.item())


trainer = Trainer(CONFIG, args.opt_level)
assert trainer.use_amp == (args.opt_level != "O0")
trainer.fit(30)
if trainer.use_amp:
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 128.0
    assert amp._amp_state.opt_properties.options["cast_model_type"] is not NotImplemented
torch.save(trainer.model, io.BytesIO())
print("weights", trainer.model[0].weight.dtype, apex.__version__)

"""torchamp.lightning.AmpPrecision, against loops of our own."""

from __future__ import annotations

import copy
import importlib
import os
import warnings
from unittest import mock

import pytest
import torch
from nets import LEVELS, Net, batch
from torch import nn

from torchamp import amp, optimizers

pl = pytest.importorskip(
    "lightning.pytorch", reason="lightning is not installed: the plugin is not tested"
)

STEPS = 6
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
MAKERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.5),
    "fused": lambda params: optimizers.FusedAdamW(params, lr=0.01),
}


class Batches(torch.utils.data.IterableDataset):
    def __init__(self, first):
        self.first = first

    def __iter__(self):
        return map(batch, range(self.first, 100))


def loader(first=0):
    return torch.utils.data.DataLoader(Batches(first), batch_size=None)


def plugin(package: str = PACKAGES[0]):
    """torchamp's AmpPrecision for one of Lightning's packages."""
    return importlib.import_module(f"torchamp.{package.partition('.')[0]}").AmpPrecision


def module_of(make=MAKERS["sgd"], bad_step=None, package=PACKAGES[0]):
    class Module(importlib.import_module(package).LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()
            self.criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
            self.dtypes = set()

        def training_step(self, batch, index):
            x, target = batch
            outputs = self.net(x)
            self.dtypes.add((self.net.last.weight.dtype, outputs.dtype))
            if self.trainer.fit_loop.total_batch_idx == bad_step:
                outputs.register_hook(infinite)
            return self.criterion(outputs.float(), target)

        def configure_optimizers(self):
            return make(self.net.parameters())

    return Module()


def infinite(grad: torch.Tensor) -> torch.Tensor:
    return torch.full_like(grad, torch.inf)


def fit(module, level, folder, steps=STEPS, package=PACKAGES[0], first=0, file=None, **options):
    """Trains from batch `first` on, and from a checkpoint if one is given; returns the trainer."""
    options = {"enable_checkpointing": False, **options}
    trainer = importlib.import_module(package).Trainer(
        plugins=[plugin(package)(level, loss_scale="dynamic", verbosity=0)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        max_steps=steps,
        **options,
    )
    trainer.fit(module, loader(first), ckpt_path=file, weights_only=False)
    return trainer


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def by_hand(level, make, *, clip=None, every=1, bad_step=None):
    """The float32 weights of a loop with torchamp.Amp."""
    torch.manual_seed(0)
    net = Net()
    optimizer = make(net.parameters())
    amp.initialize(net, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    optimizer.zero_grad()
    for index in range(STEPS * every):
        x, target = batch(index)
        outputs = net(x)
        if index == bad_step:
            outputs.register_hook(infinite)
        loss = nn.functional.cross_entropy(outputs.float(), target)
        with amp.scale_loss(loss / every, optimizer) as scaled_loss:
            scaled_loss.backward()
        if (index + 1) % every == 0:
            if clip is not None:
                clip(optimizer)
            optimizer.step()
            optimizer.zero_grad()
    scale = amp.state_dict()
    amp.release(net)
    return net.state_dict(), scale


def assert_same(states, others) -> None:
    assert states.keys() == others.keys()
    for name, value in states.items():
        assert value.dtype == others[name].dtype and torch.equal(value, others[name]), name


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("level", LEVELS)
def test_trains_as_a_loop_does(package, level, tmp_path):
    torch.manual_seed(0)
    module = module_of(bad_step=2, package=package)
    trainer = fit(module, level, tmp_path, package=package)
    weights, scales = by_hand(level, MAKERS["sgd"], bad_step=2)
    assert_same(module.net.state_dict(), weights)
    assert trainer.precision_plugin.state_dict() == scales != {}
    assert type(module.net) is Net and not torch.is_autocast_enabled("cpu")
    dtype = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}.get(level)
    assert {weight for weight, _ in module.dtypes} == {dtype or torch.float32}


CLIPS = {
    "norm": (lambda optimizer: amp.clip_grad_norm_(optimizer, 0.05), 0.05),
    "value": (lambda optimizer: amp.clip_grad_value_(optimizer, 0.01), 0.01),
}


@pytest.mark.parametrize("how", CLIPS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_clips_and_accumulates(level, make, how, tmp_path):
    clip, bound = CLIPS[how]
    torch.manual_seed(0)
    module = module_of(make, bad_step=4)
    clipping = {"gradient_clip_val": bound, "gradient_clip_algorithm": how}
    fit(module, level, tmp_path, accumulate_grad_batches=3, **clipping)
    weights, _ = by_hand(level, make, clip=clip, every=3, bad_step=4)
    assert_same(module.net.state_dict(), weights)
    unclipped, _ = by_hand(level, make, every=3, bad_step=4)
    assert any(not torch.equal(unclipped[name], weights[name]) for name in weights)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
def test_a_resumed_run_goes_on_bit_for_bit(level, make, tmp_path):
    run = tmp_path / "step=4.ckpt"
    keeps = pl.callbacks.ModelCheckpoint(
        tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1
    )

    def trained(**options):
        torch.manual_seed(0)
        module = module_of(make, bad_step=2)
        trainer = fit(module, level, tmp_path, steps=8, **options)
        return module.net.state_dict(), trainer.precision_plugin.state_dict()

    whole, scales = trained(callbacks=[keeps], enable_checkpointing=True)
    resumed, resumed_scales = trained(first=4, file=run)
    assert_same(resumed, whole)
    assert resumed_scales == scales
    saved = torch.load(run, weights_only=False)
    assert {value.dtype for value in saved["state_dict"].values()} <= {torch.float32, torch.int64}
    assert any(saved["AmpPrecision"])


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_manual_optimization_of_two_optimizers(level, make, tmp_path):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.nets = nn.ModuleList([Net(), Net()])

        def training_step(self, batch, index):
            x, target = batch
            for net, optimizer in zip(self.nets, self.optimizers()):
                optimizer.zero_grad()
                self.manual_backward(nn.functional.cross_entropy(net(x).float(), target))
                optimizer.step()

        def configure_optimizers(self):
            return [make(net.parameters()) for net in self.nets]

    torch.manual_seed(0)
    module = Module()
    nets = list(copy.deepcopy(module.nets))
    fit(module, level, tmp_path, steps=2 * STEPS)
    both = [make(net.parameters()) for net in nets]
    amp.initialize(nets, both, opt_level=level, verbosity=0)
    for index in range(STEPS):
        x, target = batch(index)
        for net, optimizer in zip(nets, both):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x).float(), target)
            with amp.scale_loss(loss, both) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
    amp.release(nets)
    for trained, net in zip(module.nets, nets):
        assert_same(trained.state_dict(), net.state_dict())


def test_layers_that_are_the_modules_own(tmp_path):
    """Calls of them cast, with self(x) and without."""

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.first, self.layers = nn.Linear(4, 8), nn.ModuleDict({"last": nn.Linear(8, 3)})
            self.gain = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.layers["last"](torch.relu(self.first(x))) * self.gain

        def training_step(self, batch, index):
            x, target = batch
            assert self.first(x).dtype == torch.float32
            return nn.functional.cross_entropy(self(x), target)

        def configure_optimizers(self):
            return MAKERS["sgd"](self.parameters())

    module = Module()
    fit(module, "O2", tmp_path)
    assert not torch.equal(module.gain, torch.ones(3))


def test_an_exception_gives_the_model_back(tmp_path):
    class Stop(pl.Callback):
        def on_after_backward(self, trainer, pl_module):
            raise ValueError("stop")

    module = module_of()
    with pytest.raises(ValueError, match="stop"):
        fit(module, "O1", tmp_path, callbacks=[Stop()])
    assert type(module.net) is Net and not torch.is_autocast_enabled("cpu")


def test_a_second_fit_keeps_the_loss_scale(tmp_path):
    module = module_of(bad_step=2)
    trainer = fit(module, "O2", tmp_path)
    precision = trainer.precision_plugin
    scales = precision.state_dict()
    trainer.fit_loop.epoch_loop.max_steps = STEPS + 1
    trainer.fit(module, loader())
    assert scales["loss_scaler0"]["loss_scale"] == 2.0**15
    assert precision.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15
    assert len(trainer.callbacks) == len({type(callback) for callback in trainer.callbacks})


def test_a_step_without_a_loss_is_none(tmp_path):
    module = module_of()
    module.training_step = lambda *_: None
    before = {name: value.clone() for name, value in module.net.state_dict().items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="step: expected grads")
        fit(module, "O2", tmp_path, steps=2, max_epochs=1)
    assert_same(module.net.state_dict(), before)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("bad_step", [0, 2])
def test_a_schedule_can_count_the_steps_taken(make, bad_step, tmp_path):
    module, rates = module_of(make, bad_step), []

    def configure_optimizers():
        optimizer = make(module.parameters())
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.5**count)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def lr_scheduler_step(scheduler, metric):
        if amp.telemetry(scheduler.optimizer).stepped:
            scheduler.step()
        rates.append(scheduler.last_epoch)

    module.configure_optimizers, module.lr_scheduler_step = configure_optimizers, lr_scheduler_step
    fit(module, "O2", tmp_path, steps=4)
    assert rates == {0: [0, 1, 2, 3], 2: [1, 2, 2, 3]}[bad_step]


@mock.patch.dict(os.environ)  # Lightning leaves the rank in it, which Accelerate finds
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_data_parallel_trains_where_the_model_is_not_cast(level, tmp_path):
    module = module_of()
    if level == "O1":
        fit(module, level, tmp_path, strategy="ddp")
        assert type(module.net) is Net
    else:
        with pytest.raises(RuntimeError, match="AmpPrecision: expected opt_level O0, O1 or O4 wi"):
            fit(module, level, tmp_path, strategy="ddp")
    torch.distributed.destroy_process_group()


def test_wrong_options_raise_at_once():
    with pytest.raises(RuntimeError, match="opt_level"):
        plugin()("O7")

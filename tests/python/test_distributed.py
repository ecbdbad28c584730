"""Two gloo ranks: DistributedDataParallel after initialize."""

import gc
import os
import tempfile

import pytest
import torch
import torch.multiprocessing as mp
from nets import Net, batch, overflow_at, sgd
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from torchamp import amp

LEVELS = ["O0", "O1", "O2", "O5"]
pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed")


def _same_on_all_ranks(tensors: list[torch.Tensor]) -> bool:
    flat = torch.cat([t.detach().float().flatten() for t in tensors])
    every = [torch.empty_like(flat) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, flat)
    return all(torch.equal(flat, other) for other in every)


def _train(rank: int, level: str) -> None:
    torch.manual_seed(rank)
    model = Net()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=1)
    masters = list(amp.master_params(optimizer))
    assert not _same_on_all_ranks(masters), "the ranks must start apart"
    parallel = DistributedDataParallel(model)
    for step in range(6):
        optimizer.zero_grad()
        bad = float("inf") if (step, rank) == (2, 1) else 0.0
        with overflow_at(model.first.bias, bad):
            loss = torch.nn.functional.cross_entropy(*_outputs(parallel, step + 10 * rank))
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
        assert _same_on_all_ranks(masters) and _same_on_all_ranks(list(model.parameters()))
        scale = torch.tensor(amp.state_dict()["loss_scaler0"]["loss_scale"])
        assert _same_on_all_ranks([scale])
    assert scale.item() == 2.0**15, "an overflow on one rank skips on both"
    for master, param in zip(masters, model.parameters()):
        assert torch.equal(master.to(param.dtype), param)


def _outputs(model: torch.nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, target = batch(seed)
    return model(x).float(), target


def _worker(rank: int, file: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    try:
        for level in LEVELS:
            _train(rank, level)
    finally:
        gc.collect()  # reference cycles of DDP keep the group, whose threads must end before exit
        distributed.destroy_process_group()


def test_ranks_that_start_apart_stay_together(capfd):
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_worker, (f"{folder}/store",), nprocs=2, start_method="spawn")
    said = capfd.readouterr().out
    for level in LEVELS:
        assert said.count(f"opt_level {level}") == 1, "rank 0 alone speaks"
    assert said.count("step skipped") == len(LEVELS)


def test_a_wrapped_model_is_refused():
    class Wrapped(DistributedDataParallel):
        def __init__(self, module: torch.nn.Module) -> None:
            torch.nn.Module.__init__(self)
            self.module = module

    with pytest.raises(RuntimeError, match="wrapped in Wrapped; initialize first, then wrap"):
        amp.initialize(Wrapped(Net()), opt_level="O2", verbosity=0)

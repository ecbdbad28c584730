"""DTensors: optimizers, scalers and clipping work on each rank's shards, and training is that of
one process on all ranks' batches."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from processes import gloo
from torch import distributed, nn

import torchamp
from torchamp import amp, optimizers

pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")

if distributed.is_available():
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed"),
    pytest.mark.xdist_group("dtensor"),
]

STEPS = 5
#: The step and rank of an overflow.
OVERFLOW = (2, 1)
#: The largest difference from one process that rounding explains.
TOLERANCE = 2e-7
#: The largest difference for ops in 16 bits, relative to the update; a step is a quarter of it.
RELATIVE_TOLERANCE = {"O1": 0.03, "O2": 0.03, "O4": 0.08, "O5": 0.08}
LOW = {"O2": torch.float16, "O5": torch.bfloat16}
adamw = functools.partial(optimizers.FusedAdamW, lr=0.01)
MAKERS = {
    "sgd": functools.partial(optimizers.FusedSGD, lr=0.125, momentum=0.5),
    "adamw": adamw,
    "torch_sgd": functools.partial(torch.optim.SGD, lr=0.125, momentum=0.5),
    "torch_fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
}


def net() -> nn.Sequential:
    """On four ranks the last one has no element of the last bias."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 6, generator=generator)
    return x, (x.sum(1) > 0).long()


def loss_of(model: nn.Module, step: int, rank: int, dtype=torch.float32) -> torch.Tensor:
    x, target = batch(step, rank)
    return nn.functional.cross_entropy(model(x.to(dtype)).float(), target)


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (distributed.get_world_size(),))


def two_axes() -> DeviceMesh:
    sizes = (distributed.get_world_size() // 2, 2)
    return init_device_mesh("cpu", sizes, mesh_dim_names=("outer", "inner"))


class FSDP:
    """Another batch on each rank. The first layer is gathered by itself."""

    mesh = staticmethod(mesh)

    @classmethod
    def shard(cls, model: nn.Sequential, level: str = "O0") -> None:
        for module in (model[0], model):
            fully_shard(module, mesh=cls.mesh(), mp_policy=amp.fsdp_policy(level))

    @staticmethod
    def batches() -> int:
        return distributed.get_world_size()


class TP:
    """Tensor parallelism, with the same batch on each rank. Grads of the norm are partial sums."""

    @staticmethod
    def shard(model: nn.Sequential, level: str = "O0") -> None:
        plan = {
            "0": ColwiseParallel(output_layouts=Shard(0)),
            "1": SequenceParallel(sequence_dim=0),
            "3": RowwiseParallel(input_layouts=Shard(0)),
        }
        parallelize_module(model, mesh(), plan)

    @staticmethod
    def batches() -> int:
        return 1


class HSDP(FSDP):
    """Shards within two groups of ranks, each of which has all shards."""

    mesh = staticmethod(two_axes)


class PartlyHSDP(FSDP):
    """HSDP for the first layer only: the mesh of the others has the ranks of both axes."""

    @staticmethod
    def shard(model: nn.Sequential, level: str = "O0") -> None:
        fully_shard(model[0], mesh=two_axes(), mp_policy=amp.fsdp_policy(level))
        fully_shard(model, mesh=mesh(), mp_policy=amp.fsdp_policy(level))


class FSDPOfTP(FSDP):
    """Parallel layers, sharded over two groups of ranks, each of which has its batch."""

    @staticmethod
    def shard(model: nn.Sequential, level: str = "O0") -> None:
        outer, inner = two_axes()["outer"], two_axes()["inner"]
        parallelize_module(model, inner, {"0": ColwiseParallel(output_layouts=Replicate())})
        parallelize_module(model, inner, {"3": RowwiseParallel(input_layouts=Replicate())})
        fully_shard(model, mesh=outer, mp_policy=amp.fsdp_policy(level))

    @staticmethod
    def batches() -> int:
        return distributed.get_world_size() // 2


class PartlyTP(TP):
    """TP with a norm of plain parameters."""

    @staticmethod
    def shard(model: nn.Sequential, level: str = "O0") -> None:
        whole = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh(), {"0": whole, "3": whole})


def own_batch(kind) -> int:
    return distributed.get_rank() * kind.batches() // distributed.get_world_size()


def spoil(model: nn.Module) -> None:
    """Makes an element of this rank's shards of the grads infinite."""
    for param in model.parameters():
        grad = param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad
        if grad is not None and grad.numel():
            grad.view(-1)[0] = float("inf")
            return


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(model: nn.Module, expected: list[torch.Tensor], tolerance: float) -> None:
    for (name, param), wanted in zip(model.named_parameters(), expected):
        difference = (full(param.detach()) - wanted).abs().max().item()
        assert difference <= tolerance, f"{name} is {difference} from one process"


def oracle(kind, make: str, steps=range(STEPS), dtype=torch.float32) -> list[torch.Tensor]:
    """One process, on all batches, with float32 masters by hand; it leaves the overflow out. O1 and
    O4 cast its ops too, which are those of the thread."""
    model = net()
    masters = [param.detach().clone() for param in model.parameters()]
    optimizer = MAKERS[make](masters)
    model.to(dtype)
    for step in steps:
        if step == OVERFLOW[0]:
            continue
        with torch.no_grad():
            for param, master in zip(model.parameters(), masters):
                param.copy_(master)
        losses = [loss_of(model, step, rank, dtype) for rank in range(kind.batches())]
        loss = sum(losses) / len(losses)
        grads = torch.autograd.grad(1024 * loss, list(model.parameters()))
        for master, grad in zip(masters, grads):
            master.grad = grad.float() / 1024
        optimizer.step()
    return masters


def scaled(kind, make: str) -> None:
    """torchamp.GradScaler."""
    model = net()
    kind.shard(model)
    optimizer = MAKERS[make](model.parameters())
    train_by(torchamp.GradScaler("cpu", init_scale=1024.0), kind, model, optimizer)
    compare(model, oracle(kind, make), 0.0 if (kind, make) == (FSDP, "sgd") else TOLERANCE)


def train_by(scaler: torch.amp.GradScaler, kind, model: nn.Module, optimizer) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step, own_batch(kind))).backward()
        if (step, distributed.get_rank()) == OVERFLOW:
            spoil(model)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0, "an overflow of one rank's shard skips on all"


def flat(model: nn.Module, use_orig_params: bool) -> nn.Module:
    cpu = torch.device("cpu")
    return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=use_orig_params)


def flattened(make_scaler: Callable[[], torch.amp.GradScaler], use_orig_params: bool) -> None:
    """FullyShardedDataParallel's parameters, with a scaler whose ranks agree."""
    model = flat(net(), use_orig_params)
    train_by(make_scaler(), FSDP, model, adamw(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        compare(model, oracle(FSDP, "adamw"), TOLERANCE)


def sharded_scaler() -> torch.amp.GradScaler:
    return ShardedGradScaler("cpu", init_scale=1024.0)


def own_scaler() -> torch.amp.GradScaler:
    group = distributed.group.WORLD
    return torchamp.GradScaler("cpu", init_scale=1024.0, process_group=group)


def flattened_refusals() -> None:
    model = flat(net(), use_orig_params=True)
    optimizer = adamw(model.parameters())
    scaler = torchamp.GradScaler("cpu")
    scaler.scale(loss_of(model, 0, 0)).backward()
    for method in ("step", "unscale_"):
        with refused(RuntimeError, f"{method}: expected process_group with parameters of Fully"):
            getattr(scaler, method)(optimizer)
    with refused(TypeError, "expected optimizers not to have parameters of FullyShardedDataPara"):
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with refused(RuntimeError, "initialize: expected process_group with parameters of FullySha"):
        amp.initialize(model, optimizer, opt_level="O1", verbosity=0)


def started(kind, make: str, level: str, unskipped: int = 0):
    model = net()
    kind.shard(model, level)
    optimizer = MAKERS[make](model.parameters())
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": unskipped}})
    return model, optimizer


def initialized(kind, make: str, level: str) -> None:
    """initialize and scale_loss, two micro-batches a step."""
    model, optimizer = started(kind, make, level)
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            loss = loss_of(model, step, own_batch(kind)) / 2
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
                if (step, distributed.get_rank()) == OVERFLOW:
                    spoil(model)
        optimizer.step()
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 256.0, "two backwards overflowed"
    assert all(param.dtype == torch.float32 for param in model.parameters())
    expected = oracle(kind, make, dtype=LOW.get(level, torch.float32))
    check_training(model, expected, level)
    amp.release(model)
    loss_of(model, STEPS, own_batch(kind)).backward()
    optimizer.step()


def check_training(model: nn.Module, expected: list[torch.Tensor], level: str) -> None:
    if level == "O0":
        return compare(model, expected, TOLERANCE)
    start = list(net().parameters())
    for param, before, wanted in zip(model.parameters(), start, expected):
        moved = (wanted - before.detach()).norm()
        error = (full(param.detach()) - wanted).norm()
        assert error <= RELATIVE_TOLERANCE[level] * moved, f"{error / moved} of the update"


def monitored() -> None:
    """The Monitor measures the grads of this rank's shards."""
    model, optimizer = started(FSDP, "sgd", "O4")
    logged: list[dict[str, float]] = []
    with amp.Monitor(optimizer, lambda values, step: logged.append(values)):
        amp.scale_loss(loss_of(model, 0, own_batch(FSDP)), optimizer).backward()
        norms = [param.grad.to_local().norm() for param in model.parameters()]
        optimizer.step()
    assert logged[0]["amp/grad_norm"] == pytest.approx(float(torch.stack(norms).norm()))


def unsynced(level: str) -> None:
    """fully_shard leaves grads to each rank, and reduces those of two micro-batches together."""
    # The scale grows at the next update: were that between the micro-batches, their scales differ.
    model, optimizer = started(FSDP, "sgd", level, unskipped=1999)
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            amp.scale_loss(loss_of(model, step, distributed.get_rank()) / 2, optimizer).backward()
        optimizer.step()
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2048.0, "unskipped": 1}
    expected = oracle(FSDP, "sgd", steps=range(2), dtype=LOW.get(level, torch.float32))
    check_training(model, expected, level)


def written_in_float32(level: str) -> None:
    """The shards are the masters: float32_params finds them, and the next forward what it wrote."""
    model, _ = started(FSDP, "sgd", level)
    before = [full(param.detach()).clone() for param in model.parameters()]
    with torch.no_grad(), amp.float32_params(model):
        for param in model.parameters():
            assert param.dtype == param.to_local().dtype == torch.float32
            param.mul_(0.5)
    for param, value in zip(model.parameters(), before):
        assert torch.equal(full(param.detach()), value * 0.5)
    whole = net()
    with torch.no_grad():
        for param, value in zip(whole.parameters(), before):
            param.copy_(value * 0.5)
    torch.testing.assert_close(
        loss_of(model, 0, 0).detach(), loss_of(whole, 0, 0).detach(), atol=1e-2, rtol=0
    )


def clipped(kind) -> None:
    """The norm is that of one process, whoever has which part of it."""
    model, optimizer = started(kind, "torch_sgd", "O0")
    amp.scale_loss(loss_of(model, 0, own_batch(kind)), optimizer).backward()
    whole = net()
    losses = [loss_of(whole, 0, rank) for rank in range(kind.batches())]
    (sum(losses) / len(losses)).backward()
    wanted = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.01)
    norm = amp.clip_grad_norm_(optimizer, 0.01)
    assert abs(norm - wanted) <= 1e-6 * wanted
    compare_grads(model, whole)
    amp.clip_grad_value_(optimizer, 1e-4)
    torch.nn.utils.clip_grad_value_(whole.parameters(), 1e-4)
    compare_grads(model, whole)
    with pytest.raises(ValueError, match="expected norm_type to be 2 with DTensors, where"):
        amp.clip_grad_norm_(optimizer, 0.01, float("inf"))


def compare_grads(model: nn.Module, whole: nn.Module) -> None:
    for param, expected in zip(model.parameters(), whole.parameters()):
        assert torch.allclose(full(param.grad), expected.grad, rtol=1e-5, atol=1e-9)


def states() -> None:
    """States have the parameters' meshes and placements, and the shards that kernels step."""
    model = net()
    FSDP.shard(model)
    optimizer = adamw(model.parameters())
    loss_of(model, 0, 0).backward()
    optimizer.step()
    for param in model.parameters():
        state = optimizer.state[param]
        for name in ("exp_avg", "exp_avg_sq"):
            assert isinstance(state[name], DTensor) and state[name].placements == param.placements
            assert state[name].shape == param.shape
        before = state["exp_avg"].to_local().clone()
        assert state["step"] == 1, "also where this rank has no element"
    optimizer.step()
    assert not torch.equal(state["exp_avg"].to_local(), before) or not before.numel()
    plain = {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3), "step": 1.0}
    optimizer.state[param] = plain
    with pytest.raises(
        TypeError, match="expected 'exp_avg' of a DTensor parameter to be a DTensor"
    ):
        optimizer.step()


#: The levels of the checkpoints.
RESUMED = ("O0", "O2")


def trained(level: str, steps: range, file: Path | None = None):
    """Trains at `level`, from a distributed checkpoint if one is given; every rank has all
    batches."""
    model, optimizer = started(FSDP, "adamw", level)
    if file is not None:
        saved = state_of(model, optimizer)
        checkpoint.load(saved, checkpoint_id=file)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )
    for step in steps:
        optimizer.zero_grad()
        amp.scale_loss(loss_of(model, step, 0), optimizer).backward()
        optimizer.step()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def save(folder: str) -> None:
    for level in RESUMED:
        checkpoint.save(state_of(*trained(level, range(2))), checkpoint_id=Path(folder, level))


class OneBatch(FSDP):
    batches = TP.batches


def resume(folder: str, level: str) -> None:
    """A checkpoint of other ranks is resumed."""
    model, optimizer = trained(level, range(3, STEPS), Path(folder, level))
    steps = {state["step"].item() for state in optimizer.state.values()}
    assert steps == {4.0}, "also of a shard without elements"
    expected = oracle(OneBatch, "adamw", dtype=LOW.get(level, torch.float32))
    check_training(model, expected, level)


@contextlib.contextmanager
def refused(kind: type[Exception], message: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    assert message in str(caught.value)


def refusals() -> None:
    """By a sentence, before anything is changed."""
    model = net()
    FSDP.shard(model)
    for name in ("FusedLAMB", "FusedNovoGrad"):
        with refused(TypeError, f"{name}: expected params[0] to be whole"):
            getattr(optimizers, name)(model.parameters(), lr=0.1)
    optimizer = adamw(model.parameters())
    with refused(TypeError, "to be a plain tensor at O3 without master weights"):
        amp.initialize(model, optimizer, opt_level="O3", verbosity=0)
    with refused(ValueError, "mp_policy=amp.fsdp_policy('O2'), whose param_dtype is torch.float16"):
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with refused(TypeError, "cast_for_inference: expected parameter '0.weight'"):
        amp.cast_for_inference(model, torch.bfloat16)
    amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
    with refused(TypeError, "save: expected models of plain tensors, got DTensors"):
        amp.save(model, optimizer, "never written")

    low = net()
    FSDP.shard(low, "O5")
    with refused(ValueError, "mp_policy=amp.fsdp_policy('O0'), whose param_dtype is None"):
        amp.initialize(low, adamw(low.parameters()), opt_level="O1", verbosity=0)
    parallel = net()
    TP.shard(parallel)
    with refused(TypeError, "got another DTensor, which O2 cannot cast"):
        amp.initialize(parallel, adamw(parallel.parameters()), opt_level="O2", verbosity=0)
    wide = net().bfloat16()
    FSDP.shard(wide)
    with refused(TypeError, "to be float32, as the shards are the masters"):
        amp.initialize(wide, adamw(wide.parameters()), opt_level="O1", verbosity=0)


def batch_norms() -> None:
    """Norms that O2 keeps in float32 have a policy of their own."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    fully_shard(model, mesh=mesh(), mp_policy=amp.fsdp_policy("O2"))
    with refused(
        ValueError,
        "parameter '1.weight' of models[0] to be sharded with mp_policy=amp.fsdp_policy('O0')",
    ):
        amp.initialize(model, adamw(model.parameters()), opt_level="O2", verbosity=0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    fully_shard(model[1], mesh=mesh(), mp_policy=amp.fsdp_policy("O0"))
    fully_shard(model, mesh=mesh(), mp_policy=amp.fsdp_policy("O2"))
    optimizer = adamw(model.parameters())
    amp.initialize(model, optimizer, opt_level="O2", loss_scale=1.0, verbosity=0)
    start = full(model[1].weight.detach()).clone()
    amp.scale_loss(loss_of(model, 0, 0), optimizer).backward()
    optimizer.step()
    assert model[1].running_mean.dtype == torch.float32
    assert not torch.equal(full(model[1].weight.detach()), start)


def wrong_order(shard: Callable[[nn.Module], nn.Module | None], level: str = "O0") -> None:
    """Sharded after initialize, in place or as another module."""
    model = net()
    optimizer = adamw(model.parameters())
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    model = shard(model) or model
    for _ in range(2):
        with refused(RuntimeError, "expected fully_shard, parallelize_module and FullyShardedData"):
            amp.scale_loss(loss_of(model, 0, 0), optimizer)


def policies() -> None:
    for level, dtype in LOW.items():
        policy = amp.fsdp_policy(level)
        assert policy.param_dtype == dtype and policy.reduce_dtype == torch.float32
    for level in ("O0", "O1", "O4"):
        assert amp.fsdp_policy(level) == MixedPrecisionPolicy()
    with refused(ValueError, "fsdp_policy: expected opt_level to have master weights"):
        amp.fsdp_policy("O3")
    with refused(RuntimeError, "opt_level"):
        amp.fsdp_policy("O7")


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for kind, make in itertools.product((FSDP, TP), ("sgd", "adamw", "torch_fused")):
        yield f"scaled-{kind.__name__}-{make}", functools.partial(scaled, kind, make)
    for make, level in itertools.product(("sgd", "adamw", "torch_fused"), ("O0", "O1", "O2", "O5")):
        yield f"FSDP-{level}-{make}", functools.partial(initialized, FSDP, make, level)
    for make, level in itertools.product(("sgd", "torch_sgd"), ("O0", "O1", "O4")):
        yield f"TP-{level}-{make}", functools.partial(initialized, TP, make, level)
    for kind in (FSDP, TP):
        yield f"order-{kind.__name__}", functools.partial(wrong_order, kind.shard)
    for level, original in itertools.product(("O0", "O2"), (True, False)):
        name = f"order-{level}-{'original' if original else 'flat'}"
        shard = functools.partial(flat, use_orig_params=original)
        yield name, functools.partial(wrong_order, shard, level)
    for kind in (FSDP, TP, PartlyTP):
        yield f"clipped-{kind.__name__}", functools.partial(clipped, kind)
    for level in ("O0", "O2"):
        yield f"unsynced-{level}", functools.partial(unsynced, level)
        yield f"written_in_float32-FSDP-{level}", functools.partial(written_in_float32, level)
    for make_scaler, original in itertools.product((sharded_scaler, own_scaler), (True, False)):
        name = f"flattened-{make_scaler.__name__}-{'original' if original else 'flat'}"
        yield name, functools.partial(flattened, make_scaler, original)
    for case in (states, refusals, flattened_refusals, batch_norms, policies, monitored):
        yield case.__name__, case


CASES = dict(cases())


def cases_of_four() -> Iterator[tuple[str, Callable[[], None]]]:
    for name in ("scaled-FSDP-adamw", "scaled-TP-adamw", "FSDP-O2-adamw", "clipped-FSDP", "states"):
        yield name, CASES[name]
    for kind, make in itertools.product((HSDP, FSDPOfTP), ("sgd", "adamw")):
        yield f"scaled-{kind.__name__}-{make}", functools.partial(scaled, kind, make)
        for level in ("O0", "O2"):
            name = f"{kind.__name__}-{level}-{make}"
            yield name, functools.partial(initialized, kind, make, level)
    for kind in (HSDP, PartlyHSDP, FSDPOfTP):
        yield f"clipped-{kind.__name__}", functools.partial(clipped, kind)


OF_FOUR = dict(cases_of_four())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def outcomes(folder) -> dict[str, str]:
    return gloo.run(2, {**CASES, "save": functools.partial(save, folder)})


@pytest.fixture(scope="module")
def outcomes_of_four(outcomes, folder) -> dict[str, str]:
    resumed = {f"resume-{level}": functools.partial(resume, folder, level) for level in RESUMED}
    return gloo.run(4, {**OF_FOUR, **resumed})


#: Cases that train with fully_shard.
FULLY_SHARDED = re.compile("FSDP|HSDP|unsynced|resume|save|states|batch_norms|monitored")


def check(case: str, outcome: str) -> None:
    """On the CPU, fully_shard raises in torch 2.6, and does not average grads in 2.8."""
    if torch.__version__ < (2, 9) and FULLY_SHARDED.search(case):
        pytest.skip("this torch's fully_shard does not train on the CPU")
    assert not outcome, outcome


@pytest.mark.parametrize("case", [*CASES, "save"])
def test_two_ranks(outcomes, case):
    check(case, outcomes[case])


@pytest.mark.soak
@pytest.mark.parametrize("case", [*OF_FOUR, *(f"resume-{level}" for level in RESUMED)])
def test_four_ranks(outcomes_of_four, case):
    check(case, outcomes_of_four[case])

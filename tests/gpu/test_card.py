"""Tests that need a card: streams, threads, devices, sizes, and bit equality with the CPU."""

import multiprocessing
import threading

import pytest
import torch
from own_kernels import needs_own_kernels

from torchamp import ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def flag(device: str = "cuda") -> torch.Tensor:
    return torch.zeros((), device=device)


def all_bits(dtype: torch.dtype) -> torch.Tensor:
    """Every value of a 16-bit dtype; for float32 as many values, spread over its range."""
    if dtype == torch.float32:
        return torch.arange(-(2**31), 2**31, 65521, dtype=torch.int32).view(dtype)
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, except that all NaNs are equal."""
    nan = a.isnan() & b.isnan()
    bits = torch.int32 if a.dtype == torch.float32 else torch.int16
    return bool((nan | (a.view(bits) == b.view(bits))).all())


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_bits_equal_the_cpus(source, target):
    values = all_bits(source)
    results = {}
    for device in ("cpu", "cuda"):
        inputs = [values.to(device), values[1:].to(device)]
        masters = [torch.ones_like(x, dtype=target) for x in inputs]
        inv_scale = torch.full((), 1 / 3, device=device)
        ops.unscale(inputs, masters, inv_scale, flag(device), accumulate=True)
        scaled = [torch.empty_like(x, dtype=target) for x in inputs]
        ops.scale(inputs, scaled, 0.7, flag(device))
        summed = [torch.empty_like(x, dtype=target) for x in inputs]
        ops.axpby(0.3, inputs, -1.7, masters, summed, flag(device))
        results[device] = [t.cpu() for t in (*masters, *scaled, *summed)]
    assert len(results["cpu"]) == len(results["cuda"])
    assert all(map(same, results["cpu"], results["cuda"]))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("source", DTYPES)
def test_float8_bits_equal_the_cpus(source, dtype):
    values = all_bits(source)[: 2**16].view(256, 256)
    finite = values.nan_to_num(0, 0, 0)
    matrices = [values, finite, finite[:77, 3:90], finite.t(), finite[:1], finite[:, :1]]
    results = {}
    for device in ("cpu", "cuda"):
        lists = [each.to(device) for each in matrices]
        scales = ops.float8_scales(lists, dtype=dtype)
        plain, transposed = ops.float8_cast(lists, scales, dtype=dtype)
        results[device] = [scales.cpu().view(torch.int32)]
        results[device] += [each.cpu().view(torch.uint8) for each in (*plain, *transposed)]
    assert all(map(torch.equal, results["cpu"], results["cuda"]))


def test_elements_beyond_32_bits_are_reached():
    count = 2**31 + 8
    tensor = torch.zeros(count, dtype=torch.float16, device="cuda")
    found_inf = flag()
    ops.check([tensor], found_inf)
    assert found_inf.item() == 0
    tensor[-1] = float("inf")
    ops.check([tensor], found_inf)
    assert found_inf.item() == 1
    tensor[-1] = 2.0
    ops.scale([tensor], [tensor], 3.0, found_inf)
    assert tensor[-1].item() == 6
    assert ops.l2norm([tensor])[0].item() == 6


@needs_own_kernels
def test_a_thousand_tensors_take_one_launch():
    tensors = [torch.randn(64, device="cuda") for _ in range(1000)]
    halves = [t.half() for t in tensors]
    ops.copy_cast(tensors, halves)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        ops.copy_cast(tensors, halves)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if "copy_cast" in event.name]
    assert len(kernels) == 1


@needs_own_kernels
@pytest.mark.parametrize("count", [1, 100, 1000])
def test_float8_of_a_list_takes_a_launch_an_op(count):
    matrices = [torch.randn(16, 33, device="cuda") for _ in range(count)]
    dtype = torch.float8_e5m2
    for _ in range(2):
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            ops.float8_cast(matrices, ops.float8_scales(matrices, dtype=dtype), dtype=dtype)
            torch.cuda.synchronize()
    assert sum("torchamp_float8" in event.name for event in profile.events()) == 2


def test_norms_repeat_bit_for_bit():
    tensors = [torch.randn(size, device="cuda") for size in (1, 100_003, 5_000_000)]
    first, first_each = ops.l2norm(tensors, per_tensor=True)
    for _ in range(5):
        norm, each = ops.l2norm(tensors, per_tensor=True)
        assert torch.equal(norm, first) and torch.equal(each, first_each)


def test_work_goes_to_the_current_stream():
    stream = torch.cuda.Stream()
    tensor = torch.ones(1_000_000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        tensor.mul_(2)
        ops.scale([tensor], [tensor], 3.0, flag())
    stream.synchronize()
    assert tensor.eq(6).all()


def test_a_thread_without_a_context_can_launch():
    tensor = torch.ones(1000, device="cuda")
    found_inf, factor = flag(), torch.full((), 3.0, device="cuda")
    thread = threading.Thread(target=ops.unscale, args=([tensor], [tensor], factor, found_inf))
    thread.start()
    thread.join()
    assert tensor.eq(3).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_device_counts_not_the_current_one():
    tensor = torch.ones(1000, device="cuda:1")
    with torch.cuda.device(0):
        ops.scale([tensor], [tensor], 3.0, flag("cuda:1"))
    assert tensor.eq(3).all()


def _backend_in_child(results) -> None:
    from torchamp._load import _C

    try:
        results.put(_C.backend("cuda:0")[0])
    except RuntimeError as error:
        results.put(str(error))


def test_a_forked_child_gets_a_clear_error():
    ops.check([torch.ones(1, device="cuda")], flag())
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_backend_in_child, args=(results,))
    child.start()
    child.join(60)
    answer = results.get()
    assert "forked" in answer or answer == "aten"

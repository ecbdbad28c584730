"""O1's and O4's casts, function by function, from apex's and torch's lists."""

import contextlib
import itertools
import pathlib
import re

import pytest
import torch
from autocast.op_log import OpLog
from autocast.table import COMPARISONS, FLOAT32, FLOAT32_ALONE, LOW_PRECISION, WIDEST
from nets import linear_net
from torch._subclasses.fake_tensor import FakeTensorMode

from torchamp import Amp, amp
from torchamp._load import _C

LEVELS = {"O1": torch.float16, "O4": torch.bfloat16}

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "o1.md"
#: Functions of docs/o1.md that consist of others, or are in the tables as variants.
ELSEWHERE = {"interpolate"}

#: torch has its own autocast rules for these on CUDA.
UNLIKE_APEX_ON_CUDA = ("F.grid_sample", "torch.norm(nuc)")
#: Their meta functions need a card, or there is none.
NOT_FAKED = (
    *UNLIKE_APEX_ON_CUDA,
    "torch.gru_cell",
    *(f"torch.scatter{kind}" for kind in ("", "(add)", "_add", "_reduce")),
    *("torch.geqrf", "torch.linalg.lstsq"),
    *(f"torch.sparse.{name}" for name in ("mm", "mm(reduce)", "addmm", "sampled_addmm")),
    "F.ctc_loss",
    "F.ctc_loss(lists)",
)


@contextlib.contextmanager
def casts_of(level: str, device: torch.device):
    """O1 or O4 in this thread."""
    with Amp(linear_net().to(device), opt_level=level, verbosity=0):
        yield LEVELS[level]


def arguments(sizes, dtypes, device) -> list[torch.Tensor]:
    """Numbers in (0.1, 0.9), of alternating dtypes."""
    return [
        (0.1 + 0.8 * torch.rand(size, device=device)).to(dtype)
        for size, dtype in zip(sizes, itertools.cycle(dtypes))
    ]


def mixtures(low: torch.dtype, count: int) -> list[list[torch.dtype]]:
    """Dtypes for `count` arguments; mixed dtypes in both orders."""
    both = [[torch.float32], [low]]
    return both if count == 1 else [*both, [torch.float32, low], [low, torch.float32]]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", LOW_PRECISION)
def test_low_precision_list(name, level, device):
    function, *sizes = LOW_PRECISION[name]
    with casts_of(level, device) as low:
        for dtypes in mixtures(low, len(sizes)):
            assert function(*arguments(sizes, dtypes, device)).dtype == low, dtypes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [*FLOAT32, *FLOAT32_ALONE])
def test_float32_list(name, level, device):
    if device.type == "cuda" and name in UNLIKE_APEX_ON_CUDA:
        pytest.skip("a documented difference")
    function, *sizes = {**FLOAT32, **FLOAT32_ALONE}[name]
    with casts_of(level, device) as low:
        for dtypes in mixtures(low, len(sizes)):
            given = arguments(sizes, dtypes, device)
            result = function(*given)
            assert result.dtype == torch.float32, dtypes
            with amp.disable_casts():
                expected = function(*[argument.float() for argument in given])
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WIDEST)
def test_widest_list(name, level, device):
    function, *sizes = WIDEST[name]
    with casts_of(level, device) as low:
        for dtypes in mixtures(low, len(sizes)):
            expected = expected_type(name, dtypes, low)
            assert function(*arguments(sizes, dtypes, device)).dtype == expected, dtypes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_compare_in_the_widest_type(name, level, device):
    function, *sizes = COMPARISONS[name]
    with casts_of(level, device) as low:
        third = torch.full(sizes[0], 1 / 3, device=device)
        for a, b in [(third, third.to(low)), (third.to(low), third)]:
            assert_equal(function(a, b), function(a.float(), b.float()))


def assert_equal(actual, expected) -> None:
    """The result for bool tensors, or for bools."""
    assert torch.equal(torch.as_tensor(actual), torch.as_tensor(expected))


@contextlib.contextmanager
def skipped_without_a_driver():
    """torch 2.6 to 2.9 ask the driver for fake convolutions in bfloat16, torch 2.6 for FFTs."""
    try:
        yield
    except RuntimeError as error:
        if re.search("CUDA driver version is insufficient|no NVIDIA driver", str(error)):
            pytest.skip("this torch fakes it only with a driver")
        raise


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [*LOW_PRECISION, *FLOAT32, *FLOAT32_ALONE, *WIDEST])
def test_cudas_lists_without_a_card(name, level):
    """Every torch has CUDA's dispatcher entries, which fake tensors can reach."""
    if name in NOT_FAKED:
        pytest.skip("cannot be faked")
    function, *sizes = {**LOW_PRECISION, **FLOAT32, **FLOAT32_ALONE, **WIDEST}[name]
    low = LEVELS[level]
    with contextlib.closing(_C.OpenAutocast(["cuda"], low)):
        for dtypes in mixtures(low, len(sizes)):
            with FakeTensorMode(allow_non_fake_inputs=True), skipped_without_a_driver():
                result = function(*arguments(sizes, dtypes, torch.device("cuda", 0)))
            assert result.dtype == expected_type(name, dtypes, low), dtypes


def rounding_to_16_bit(log: OpLog) -> list:
    """The ops that give 16-bit tensors, but for the one that rounds nothing."""
    return [
        op
        for op, tensors in log.results
        if op is not torch.ops.aten.neg.default
        and any(tensor.dtype in LEVELS.values() for tensor in tensors)
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("placed_on", ["cpu", "cuda:0"])
@pytest.mark.parametrize("name", FLOAT32)
def test_functions_in_float32_are_so_inside(name, placed_on, level):
    if name in NOT_FAKED:
        pytest.skip("cannot be faked")
    function, *sizes = FLOAT32[name]
    with casts_of(level, torch.device("cpu")) as low:
        with contextlib.closing(_C.OpenAutocast(["cuda"], low)):
            for dtypes in mixtures(low, len(sizes)):
                with FakeTensorMode(allow_non_fake_inputs=True), skipped_without_a_driver():
                    given = arguments(sizes, dtypes, torch.device(placed_on))
                    with OpLog() as log:
                        function(*given)
                assert rounding_to_16_bit(log) == [], dtypes


#: Kernels of cuDNN and CUDA, and what convolutions call, which are cast before.
ONLY_CUDAS = {
    "cudnn",
    "_cudnn",
    "_thnn",
    "_scaled_dot_product_flash",
    "convolution",
    "_convolution",
}


def test_the_cpu_has_a_rule_for_each_op_that_cuda_has_one_for():
    registrations = torch._C._dispatch_get_registrations_for_dispatch_key
    with casts_of("O1", torch.device("cpu")):
        missing = set(registrations("AutocastCUDA")) - set(registrations("AutocastCPU"))
    # Overloads for named dimensions have rules on CUDA alone.
    unnamed = {op for op in missing if not re.search("(?i)dimname|[.]names", op)}
    names = {name.removeprefix("aten::") for name in unnamed if name.startswith("aten::")}
    assert not {name for name in names if not name.startswith(tuple(ONLY_CUDAS))}


#: Ops that torch casts to float32 on the CPU alone: CUDA has kernels in 16 bits for these, or torch
#: casts what they call.
IN_16_BITS_ON_CUDA = (
    *("_addmm_activation", "_grid_sampler_2d_cpu_fallback", "_native_multi_head_attention"),
    *("adaptive_", "cat", "fake_quantize", "fractional_max_pool", "grid_sampler"),
    *("index_copy.dimname", "max_pool3d", "max_unpool", "mkldnn_rnn_layer"),
    *("multilabel_margin_loss_forward", "reflection_pad", "replication_pad", "stack", "trace"),
)


def test_cuda_has_a_rule_for_each_op_that_it_does_not_have_in_16_bits():
    registrations = torch._C._dispatch_get_registrations_for_dispatch_key
    with contextlib.closing(_C.OpenAutocast(["cpu", "cuda"], torch.float16)):
        missing = set(registrations("AutocastCPU")) - set(registrations("AutocastCUDA"))
    names = {name.removeprefix("aten::") for name in missing if name.startswith("aten::")}
    assert not {name for name in names if not name.startswith(IN_16_BITS_ON_CUDA)}


def promised(rule: str) -> set[str]:
    """The functions that docs/o1.md lists for it, but for operators and modules."""
    (row,) = (line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| {rule} |"))
    return set(re.findall(r"`([a-z_][a-z_0-9.]*)`", row)) - {"torch.fft"}


def names_in(table: dict[str, tuple]) -> set[str]:
    return {re.sub(r"^(torch|F|Tensor)\.|\(.*", "", name) for name in table}


@pytest.mark.parametrize(
    ("rule", "table"),
    [
        ("16 bit", LOW_PRECISION),
        ("float32", {**FLOAT32, **FLOAT32_ALONE}),
        ("the widest argument type", {**WIDEST, **COMPARISONS}),
    ],
)
def test_the_document_promises_what_is_tested_here(rule, table):
    assert promised(rule) - ELSEWHERE <= names_in(table)


def expected_type(name: str, dtypes: list[torch.dtype], low: torch.dtype) -> torch.dtype:
    if name in LOW_PRECISION or (name in WIDEST and torch.float32 not in dtypes):
        return low
    return torch.float32

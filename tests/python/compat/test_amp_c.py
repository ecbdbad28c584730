"""amp_C's scaling, sums and norms, called as in programs."""

import math

import amp_C
import pytest
import torch
from apex.multi_tensor_apply import MultiTensorApply, multi_tensor_applier

LOW_AND_FLOAT = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture
def flag(device):
    return torch.zeros(1, dtype=torch.int32, device=device)


def tensors(device, dtype=torch.float32, count=3):
    return [torch.randn(5, i + 1, device=device).to(dtype) for i in range(count)]


def test_the_applier_hands_everything_over():
    assert MultiTensorApply.available and multi_tensor_applier.chunk_size == 65536
    seen = multi_tensor_applier(lambda *args: args, "flag", [[1]], 2, 3)
    assert seen == (65536, "flag", [[1]], 2, 3)


@pytest.mark.parametrize("out_dtype", LOW_AND_FLOAT)
@pytest.mark.parametrize("dtype", LOW_AND_FLOAT)
def test_scale(dtype, out_dtype, flag, device):
    inputs = tensors(device, dtype)
    outputs = [torch.empty_like(t, dtype=out_dtype) for t in inputs]
    multi_tensor_applier(amp_C.multi_tensor_scale, flag, [inputs, outputs], 0.5)
    for got, x in zip(outputs, inputs):
        assert torch.equal(got, (x.float() * 0.5).to(out_dtype))
    assert flag.item() == 0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", [0, 2])
def test_scale_flags_what_is_not_finite_and_writes_it(bad, where, flag, device):
    inputs = tensors(device)
    inputs[where].view(-1)[-1] = bad
    multi_tensor_applier(amp_C.multi_tensor_scale, flag, [inputs, inputs], 1.0)
    assert flag.tolist() == [1] and flag.dtype == torch.int32
    multi_tensor_applier(amp_C.multi_tensor_scale, flag, [tensors(device)] * 2, 1.0)
    assert flag.item() == 1, "no function clears it"


@pytest.mark.parametrize(
    ("checked", "bad_x", "bad_y", "flagged"),
    [(-1, 1, 0, 1), (-1, 0, 1, 1), (0, 0, 1, 0), (0, 1, 0, 1), (1, 1, 0, 0), (1, 0, 1, 1)],
)
def test_axpby(checked, bad_x, bad_y, flagged, flag, device):
    x, y, out = tensors(device), tensors(device, torch.float16), tensors(device)
    x[0][0, 0] = math.nan if bad_x else 1.0
    y[0][0, 0] = math.nan if bad_y else 1.0
    multi_tensor_applier(amp_C.multi_tensor_axpby, flag, [x, y, out], 2.0, -0.5, checked)
    assert flag.item() == flagged
    for a, b, got in zip(x[1:], y[1:], out[1:]):
        torch.testing.assert_close(got, 2.0 * a - 0.5 * b.float())


@pytest.mark.parametrize("dtype", LOW_AND_FLOAT)
def test_l2norm(dtype, flag, device):
    lists = [tensors(device, dtype)]
    wanted = [t.double().norm().item() for t in lists[0]]
    norm, norms = multi_tensor_applier(amp_C.multi_tensor_l2norm, flag, lists, True)
    assert norm.shape == (1,) and norm.dtype == torch.float32 and norms.shape == (3,)
    assert norms.tolist() == pytest.approx(wanted, rel=1e-5)
    assert norm.item() == pytest.approx(math.hypot(*wanted), rel=1e-5)
    norm, norms = multi_tensor_applier(amp_C.multi_tensor_l2norm, flag, lists, False)
    assert norms.numel() == 0


@pytest.mark.parametrize(
    ("lists", "got"),
    [
        ([[]], "1 of [0]"),
        ([[], []], "2 of [0, 0]"),
        ([[1], [1, 2]], "2 of [1, 2]"),
    ],
)
def test_lists_are_checked(lists, got, flag):
    lists = [[torch.zeros(2) for _ in tensors] for tensors in lists]
    with pytest.raises(RuntimeError) as raised:
        amp_C.multi_tensor_scale(65536, flag, lists, 1.0)
    assert str(raised.value) == (
        "multi_tensor_scale: expected tensor_lists to have 2 lists of one length, not empty, got "
        f"{got} tensors"
    )

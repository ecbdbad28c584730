"""The ops in graphs of torch.compile: as without, in one graph, with fake kernels."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchamp import ops

HALF = torch.float16
ONLY_X, MOMENTUM = ops.Check.X, ops.StepAlgorithm.MOMENTUM
RULE = ops.ScaleRule(backoff_factor=0.25)


def halves(device):
    return [torch.tensor([1.0, -2.5, 3.0], device=device).to(HALF), torch.ones(2, 2, device=device)]


def flag(device):
    return torch.zeros((), device=device)


def scale(device):
    outputs, found_inf = [torch.empty_like(x, dtype=HALF) for x in halves(device)], flag(device)
    ops.scale(halves(device), outputs, 3e4, found_inf)
    return [*outputs, found_inf]


def unscale(device):
    grads, found_inf = (
        [torch.ones_like(x, dtype=torch.float32) for x in halves(device)],
        flag(device),
    )
    per_tensor = torch.zeros(2, dtype=torch.uint8, device=device)
    inv_scale = torch.full((), 0.5, device=device)
    ops.unscale(halves(device), grads, inv_scale, found_inf, True, per_tensor)
    return [*grads, found_inf, per_tensor]


def axpby(device):
    x, y, found_inf = halves(device), halves(device), flag(device)
    y[1] = y[1] * float("inf")
    outputs = [torch.empty_like(each) for each in x]
    ops.axpby(2.0, x, -1.0, y, outputs, found_inf, checked=ONLY_X)
    return [*outputs, found_inf]


def check(device):
    found_inf = flag(device)
    ops.check([*halves(device), torch.full((3,), float("nan"), device=device)], found_inf)
    return [found_inf]


def check_l2norm(device):
    found_inf = flag(device)
    return [ops.check_l2norm(halves(device), found_inf), found_inf]


def l2norm(device):
    return [*ops.l2norm(halves(device), per_tensor=True)]


def l2norm_of_all(device):
    norm, norms = ops.l2norm(halves(device))
    assert norms is None
    return [norm]


def copy_cast(device):
    outputs = [torch.empty_like(x, dtype=torch.bfloat16) for x in halves(device)]
    ops.copy_cast(halves(device), outputs)
    return outputs


def update_scale(device):
    tracker = torch.zeros((), dtype=torch.int32, device=device)
    loss_scale = torch.full((), 1024.0, device=device)
    ops.update_scale(loss_scale, tracker, torch.ones((), device=device), RULE)
    ops.update_scale(loss_scale, tracker, flag(device))
    return [loss_scale, tracker]


def float8_scales(device):
    return [ops.float8_scales(halves(device), dtype=torch.float8_e5m2)]


def float8_cast(device):
    matrices = [torch.arange(12.0, device=device).view(3, 4), torch.ones(17, 2, device=device).T]
    scales = ops.float8_scales(matrices, dtype=torch.float8_e4m3fn)
    plain, transposed = ops.float8_cast(matrices, scales, dtype=torch.float8_e4m3fn)
    none, alone = ops.float8_cast(matrices, scales, dtype=torch.float8_e5m2, plain=False)
    assert none == []
    return [each.view(torch.uint8) for each in (*plain, *transposed, *alone)]


def fused_step(device):
    params = [x.float() for x in halves(device)]
    states = [torch.zeros_like(param) for param in params]
    models = [param.to(HALF) for param in params]
    steps = torch.zeros(2, device=device)
    hyper = torch.tensor([[0.1, 0.9] + [0.0] * 10], dtype=torch.float64)
    groups = torch.zeros(2, dtype=torch.int32)
    ops.fused_step(
        MOMENTUM, halves(device), params, states, steps, hyper, groups,
        model_params=models, grad_factor=torch.full((), 0.5, device=device),
    )  # fmt: skip
    return [*params, *states, *models, steps]


OPS = [scale, unscale, axpby, check, check_l2norm, l2norm, l2norm_of_all, copy_cast, float8_scales,
       float8_cast, update_scale, fused_step]  # fmt: skip


def test_all_ops_are_here():
    named = {op for op in ops.__all__ if op[0].islower()}
    assert named == {each.__name__ for each in OPS} - {"l2norm_of_all"}


def test_each_op_has_one_schema():
    names = filter(re.compile("torchamp::").match, torch._C._dispatch_get_all_op_names())
    assert sorted(names) == [f"torchamp::{op}" for op in ops.__all__ if op[0].islower()]


@pytest.mark.parametrize("op", OPS)
def test_one_graph_gives_what_the_op_gives(op, device):
    torch._dynamo.reset()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    expected, got = op(device), compiled(device)
    assert [x.dtype for x in expected] == [x.dtype for x in got]
    assert all(map(torch.equal, expected, got))  # the dtypes have shown equal lengths


@pytest.mark.skipif(
    torch.__version__[:5] == "2.12.", reason="this torch.compile cannot read a member of an enum"
)
def test_members_of_enums_can_be_read_in_a_graph(device):
    torch._dynamo.reset()

    def read(x):
        ops.axpby(1.0, [x], 1.0, [x], [x], flag(device), checked=ops.Check.X)
        return x

    compiled = torch.compile(read, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.ones(3, device=device)), torch.full((3,), 2.0, device=device))


@pytest.mark.parametrize("op", ["check", "check_l2norm", "l2norm", "copy_cast", "scale"])
def test_fake_kernels_have_the_results_sizes(op, device):
    found_inf = flag(device)
    outputs = [torch.empty_like(x) for x in halves(device)]
    arguments = {
        "check": (found_inf,), "check_l2norm": (found_inf,), "l2norm": (True,),
        "copy_cast": (outputs,), "scale": (outputs, 2.0, found_inf),
    }[op]  # fmt: skip
    real = getattr(torch.ops.torchamp, op)(halves(device), *arguments)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = [mode.from_tensor(x) for x in halves(device)]
        arguments = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, arguments)
        fake = getattr(torch.ops.torchamp, op)(inputs, *arguments)
    for expected, got in zip(*(x if isinstance(x, tuple) else (x,) for x in (real, fake))):
        if expected is not None:
            assert (expected.shape, expected.dtype, expected.device) == (
                got.shape,
                got.dtype,
                got.device,
            )


def test_float8_of_sizes_that_change_is_one_graph(device):
    torch._dynamo.reset()
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def cast(matrix):
        scales = ops.float8_scales([matrix], dtype=torch.float8_e4m3fn)
        plain, transposed = ops.float8_cast([matrix], scales, dtype=torch.float8_e4m3fn)
        return plain[0].view(torch.uint8), transposed[0].view(torch.uint8)

    compiled = torch.compile(cast, fullgraph=True, backend=counted, dynamic=True)
    for rows in (5, 17, 40):
        matrix = torch.linspace(-3, 3, rows * 6, device=device).view(rows, 6)
        assert all(map(torch.equal, cast(matrix), compiled(matrix)))
    assert len(graphs) == 1


def test_arguments_are_checked_in_graphs_too(device):
    torch._dynamo.reset()

    def wrong(found_inf):
        ops.check(halves(device), found_inf)
        return found_inf

    compiled = torch.compile(wrong, fullgraph=True, backend="aot_eager")
    with pytest.raises(TypeError, match="check: expected found_inf"):
        compiled(torch.zeros((), dtype=torch.int32, device=device))


def test_an_ops_own_help():
    assert ops.check.__name__ == "check" and "found_inf" in ops.check.__doc__

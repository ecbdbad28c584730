"""Which products are in float8: by modules and functions, scopes, threads and transforms."""

import contextlib
import functools

import pytest
import torch
import torch.nn.functional as F
from nets import in_thread
from products import LEVELS, Blocks, counted, in_float8, linear
from torch import nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.utils.checkpoint import checkpoint

from torchamp import amp


def of(level: str, *sizes: int) -> torch.Tensor:
    x = torch.randn(sizes)
    return x if level == "O4" else x.bfloat16()


@pytest.mark.parametrize("level", LEVELS)
def test_modules_of_torch(level):
    x = of(level, 2, 3, 64).requires_grad_()
    model, _ = in_float8(level, nn.Sequential(nn.MultiheadAttention(64, 2)), ["0"])
    assert counted(lambda: model[0](x, x, x))[1] == 2  # of queries, keys and values; of the output
    y = x + 1
    assert counted(lambda: model[0](x, y, y))[1] == 1  # parts of the weight are no weight
    layer = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    model, _ = in_float8(level, nn.Sequential(layer), ["0"])
    out, count = counted(lambda: model[0](x))
    assert count == 4
    assert counted(out.sum().backward)[1] == 8


@pytest.mark.parametrize("level", LEVELS)
def test_functions_and_views(level):
    module, model = linear(level)
    x, w, b = of(level, 3, 64), module.weight, module.bias
    with torch.no_grad():
        view = w.view(32, 64)
    with torch.inference_mode():
        seen_by_inference = w.t()
    cases = [
        lambda: F.linear(x, w, b),
        lambda: torch.addmm(b, x, w.t()),
        lambda: x @ w.t(),
        lambda: x.mm(w.T),
        lambda: x.matmul(w.data.t()),
        lambda: F.linear(x, w.detach()),
        lambda: F.linear(x, view),
        lambda: x[0] @ w.mT,
        lambda: torch.mm(x, seen_by_inference),
    ]
    found = [counted(case) for case in cases]
    assert [count for _, count in found] == [1] * len(cases)
    first, without = found[0][0], found[2][0]
    assert torch.equal(found[1][0], first)
    for i in (3, 4, 5, 6, 8):
        assert torch.equal(found[i][0], without)


def test_half_functions_get_cast_copies_of_weights():
    module, model = linear("O4")
    call = amp.half_function(F.linear)
    assert counted(lambda: call(torch.randn(3, 64), module.weight))[1] == 0
    assert counted(lambda: model(torch.randn(3, 64)))[1] == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scope", [torch.no_grad, torch.inference_mode])
def test_products_without_grads_are_the_same_bit_for_bit(level, scope):
    model, _ = in_float8(level, Blocks())
    x = torch.randn(5, 32)
    right = model(x)
    with scope():
        y, count = counted(lambda: model(x))
    assert count == 2 and torch.equal(y, right)


@pytest.mark.parametrize("level", LEVELS)
def test_disable_casts_and_release_end_it(level):
    model, _ = in_float8(level, Blocks())
    x = torch.randn(5, 32)
    plain = Blocks()
    plain.load_state_dict(model.state_dict())
    part = of(level, 3, 32)
    with amp.disable_casts():
        with amp.disable_casts():
            assert counted(lambda: model(x))[1] == 0
        assert counted(lambda: model.ff(part))[1] == 0
        with amp.autocast("cpu", torch.bfloat16):
            assert counted(lambda: (model(x), model.ff(part)))[1] == 0
    assert counted(lambda: (model(x), model.ff(part)))[1] == 4
    amp.release(model)
    assert counted(lambda: model(x))[1] == 0
    assert torch.equal(model(x), plain(x))
    assert torch.is_autocast_cache_enabled()


@pytest.mark.parametrize("level", LEVELS)
def test_it_ends_with_the_model(level):
    model, optimizer = in_float8(level, Blocks())
    weight, x = model.ff[0].weight.detach(), of(level, 3, 32)
    assert counted(lambda: F.linear(x, weight))[1] == 1
    del model, optimizer
    assert counted(lambda: F.linear(x, weight))[1] == 0


@pytest.mark.parametrize("level", LEVELS)
def test_other_threads_compute_so_in_forwards_alone(level):
    model, _ = in_float8(level, Blocks())
    x = torch.randn(5, 32)
    right = model(x)
    y, count = in_thread(lambda: counted(lambda: model(x)))
    assert count == 2 and torch.equal(y, right)
    part = of(level, 3, 32)
    assert (
        in_thread(lambda: counted(lambda: F.linear(part, model.ff[0].weight.to(part.dtype))))[1]
        == 0
    )
    assert in_thread(lambda: counted(y.sum().backward))[1] == 3  # no grad of x


def test_forwards_in_a_thread_with_another_model():
    model, _ = in_float8("O5", Blocks())
    x = torch.randn(5, 32)

    def with_own_model():
        own, _ = in_float8("O4", Blocks())
        counts = [counted(functools.partial(each, x))[1] for each in (own, model, own)]
        amp.release(own)
        return [*counts, counted(lambda: model(x))[1]]

    assert in_thread(with_own_model) == [2, 2, 2, 2]


def test_models_of_other_levels_in_the_thread_are_as_without_it():
    x = torch.randn(5, 32)
    plain, _ = in_float8("O4", Blocks(), ["ff"])
    right, state = plain.head(x), plain.state_dict()
    amp.release(plain)
    wide, _ = in_float8("O5", Blocks())
    plain = amp.initialize(Blocks(), opt_level="O4", verbosity=0)
    plain.load_state_dict(state)
    y, count = counted(lambda: plain.head(x))
    assert count == 0 and torch.equal(y, right)
    amp.release(plain)
    assert counted(lambda: wide(x))[1] == 2
    assert counted(lambda: wide.ff[0](x.bfloat16()))[1] == 1


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_of_a_backward_is_in_float8_but_the_grads_of_its_products(level):
    module, model = linear(level)
    x = of(level, 3, 64).requires_grad_()
    with amp.disable_casts():
        y = F.linear(x.to(module.weight.dtype), module.weight)
    assert counted(lambda: torch.autograd.grad(y.sum(), x, retain_graph=True))[1] == 0
    assert counted(lambda: torch.autograd.grad(y.sum(), x, create_graph=True))[1] == 0

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return (grad @ module.weight.t()) @ module.weight

    assert counted(lambda: Multiply.apply(x.detach().requires_grad_()).sum().backward())[1] == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_give_the_same_grads(level, reentrant):
    model, _ = in_float8(level, Blocks())
    x = torch.randn(5, 32)

    def grads(ff):
        model.zero_grad()
        own = of(level, 5, 32).copy_(x).requires_grad_()
        ff(own).float().pow(2).sum().backward()
        return [own.grad, *(p.grad for p in model.ff.parameters())]

    right, count = counted(lambda: grads(model.ff))
    assert count == 6
    kept = lambda x: checkpoint(model.ff, x, use_reentrant=reentrant)  # noqa: E731
    found, count = counted(lambda: grads(kept))
    assert count == 8
    assert all(map(torch.equal, found, right))

    def plain(x):
        with amp.disable_casts():
            return kept(x.to(model.ff[0].weight.dtype))

    assert counted(lambda: grads(plain))[1] == 0


@pytest.mark.parametrize("level", LEVELS)
def test_transforms_give_the_plain_product(level):
    model, _ = in_float8(level, Blocks())
    ff, params = model.ff, {name: p.detach() for name, p in model.ff.named_parameters()}
    x = of(level, 5, 32)

    def loss(params, x):
        return functional_call(ff, params, (x,)).float().sum()

    cases = [
        lambda: vmap(ff)(x),
        lambda: vmap(vmap(ff))(x[None]),
        lambda: vmap(lambda x: x @ ff[0].weight.t())(x[None]),
        lambda: grad(loss)(params, x),
        lambda: vmap(grad(loss), in_dims=(None, 0))(params, x),
        lambda: hessian(lambda x: ff(x).float().sum())(x[0]),
        lambda: jvp(ff, (x,), (x,)),
    ]
    for case in cases:
        found, count = counted(case)
        with amp.disable_casts() if level == "O5" else contextlib.nullcontext():
            right = case()
        assert count == 0
        assert torch.utils._pytree.tree_all(torch.is_tensor, found)
        assert torch.utils._pytree.tree_map(torch.equal, found, right)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert counted(lambda: ff(dual))[1] == 0
    assert counted(lambda: ff(x))[1] == 2


@pytest.mark.parametrize("level", LEVELS)
def test_traced_and_exported_graphs_have_the_plain_product(level):
    model, _ = in_float8(level, Blocks())
    x = torch.randn(5, 32)
    traced, count = counted(lambda: torch.jit.trace(model, x, check_trace=False))
    assert count == 0 and str(traced.inlined_graph).count("aten::linear") == 3
    exported, count = counted(lambda: torch.export.export(model, (x,)))
    assert count == 0 and str(exported.graph).count("aten.linear.default") == 3
    amp.release(model)


COMPILED = """
import sys
import torch
from torch import nn
from torchamp import amp
from torchamp._load import _C

level, backend = sys.argv[1:]
layers = nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)
model = amp.initialize(nn.Sequential(nn.Sequential(*layers)), opt_level=level, float8=["0"])
x = torch.randn(5, 32)

def counted(function):
    before, _ = _C.float8_counts()
    return function(), _C.float8_counts()[0] - before

compiled = torch.compile(model, backend=backend)
for scope in (torch.enable_grad, torch.no_grad, torch.inference_mode):
    for _ in range(2):
        with scope():
            y, count = counted(lambda: compiled(x))
        assert count == 0, (scope, count)
        if y.requires_grad:
            assert counted(y.sum().backward)[1] == 0
assert counted(lambda: model(x))[1] == 2
with amp.disable_casts():
    right = model(x)
assert torch.allclose(y, right, atol=0.02), (y, right)
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_graphs_have_the_plain_product_and_say_so_once(level, backend, tmp_path, python):
    for _ in range(2):  # the second finds the first one's graphs
        told = python(
            "-c", COMPILED, level, backend, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "graphs")
        )
        line = (
            "float8: compiled graphs compute linears in bfloat16; torchao's layers are in float8 "
            "there"
        )
        assert told.count(line) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_second_derivatives_are_refused(level):
    module, model = linear(level)
    x = of(level, 3, 64).requires_grad_()
    text = "linear: a product in float8 has no second derivative; compute it in amp.disable_casts()"
    with pytest.raises(NotImplementedError, match=f"^{text.replace('(', '.').replace(')', '.')}"):
        torch.autograd.grad(module(x).sum(), x, create_graph=True)
    with amp.disable_casts():
        y = F.linear(x.to(module.weight.dtype), module.weight).float().pow(2).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert first.pow(2).sum().backward() is None and module.weight.grad.any()


TAKEN = """
import torch
from torchamp import amp

library = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
library.fallback(torch.library.fallthrough_kernel)
model = torch.nn.Sequential(torch.nn.Linear(32, 32))
try:
    amp.initialize(model, opt_level="O5", float8=["0"], verbosity=0)
except RuntimeError as error:
    print(str(error).splitlines()[0])
print(model[0].weight.dtype, type(model).__name__)
"""


def test_the_key_of_another_library_is_refused(python):
    assert python("-c", TAKEN).splitlines()[-2:] == [
        "initialize: expected torch's dispatch key AutocastPrivateUse1 to be free for float8, got "
        "a library that has it; leave float8 out, or that library",
        "torch.float32 Sequential",
    ]

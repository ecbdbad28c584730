"""apex's and torch's lists of functions that O1 casts, with sizes of floating arguments for calls.

A table is {name: (function, size, ...)}.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

MATRIX, VECTOR, BATCH, IMAGE = (4, 4), (4,), (2, 4, 4), (2, 3, 8, 8)


def _named(module, prefix: str, **sizes: tuple) -> dict[str, tuple]:
    return {f"{prefix}.{name}": (getattr(module, name), *value) for name, value in sizes.items()}


def _also_methods(table: dict[str, tuple]) -> dict[str, tuple]:
    """torch's functions, and the methods of the same names."""
    methods = {}
    for name, (_, *sizes) in table.items():
        method = getattr(torch.Tensor, name.split(".")[-1], None)
        if method is not None:
            methods[name.replace("torch.", "Tensor.")] = (method, *sizes)
    return {**table, **methods}


def _operators(names: str, *sizes: tuple) -> dict[str, tuple]:
    return {f"Tensor.__{n}__": (getattr(torch.Tensor, f"__{n}__"), *sizes) for n in names.split()}


def _ints(x: torch.Tensor, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=x.device)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return _ints(x, 3, 2, 1, 0)


def _regular(x: torch.Tensor) -> torch.Tensor:
    """Symmetric and positive definite, of a matrix in (0, 1): exact in 16 bits."""
    quarters = torch.floor(4 * x) / 4
    return quarters + quarters.transpose(0, 1) + 8 * torch.eye(4, dtype=x.dtype, device=x.device)


def _of_regular(names: str) -> dict[str, tuple]:
    """Functions of one such matrix: of several results, the first."""

    def first(function: Callable) -> Callable:
        def call(x):
            result = function(_regular(x))
            return result if isinstance(result, torch.Tensor) else result[0]

        return call

    functions = {name: operator.attrgetter(name)(torch) for name in names.split()}
    return {f"torch.{name}": (first(function), MATRIX) for name, function in functions.items()}


def _parts(function: Callable) -> Callable:
    """`function` with the real and imaginary parts of its result in one tensor."""
    return lambda *args: torch.view_as_real(function(*args).resolve_conj())


def _with_classes(loss: Callable) -> Callable:
    return lambda x: loss(x, _ints(x, 0, 1, 2, 3))


LOW_PRECISION = {
    **_named(F, "F", linear=((2, 4), (3, 4), (3,)), conv_tbc=((5, 2, 3), (3, 3, 4), (4,))),
    **_named(F, "F", conv1d=((2, 3, 8), (4, 3, 3), (4,)), conv2d=(IMAGE, (4, 3, 3, 3), (4,))),
    **_named(F, "F", conv3d=((1, 2, 4, 4, 4), (2, 2, 3, 3, 3))),
    **_named(F, "F", conv_transpose1d=((2, 3, 8), (3, 4, 3))),
    **_named(F, "F", conv_transpose2d=(IMAGE, (3, 4, 3, 3))),
    **_named(F, "F", conv_transpose3d=((1, 2, 4, 4, 4), (2, 2, 3, 3, 3))),
    "F.conv2d(same)": (lambda x, w: F.conv2d(x, w, padding="same"), IMAGE, (4, 3, 3, 3)),
    **_also_methods(
        _named(
            torch,
            "torch",
            prelu=(MATRIX, (1,)),
            addmm=(MATRIX, MATRIX, MATRIX),
            addmv=(VECTOR, MATRIX, VECTOR),
            addr=(MATRIX, VECTOR, VECTOR),
            matmul=(BATCH, MATRIX),
            mm=(MATRIX, MATRIX),
            mv=(MATRIX, VECTOR),
            addbmm=(MATRIX, BATCH, BATCH),
            baddbmm=(BATCH, BATCH, BATCH),
            bmm=(BATCH, BATCH),
        )
    ),
    **_operators("matmul", MATRIX, MATRIX),
    "torch.chain_matmul": (torch.chain_matmul, MATRIX, MATRIX),
    "torch.linalg.multi_dot": (lambda a, b: torch.linalg.multi_dot([a, b]), MATRIX, MATRIX),
    "torch.einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), MATRIX, MATRIX),
    "torch.einsum(sum)": (lambda a: torch.einsum("ij->i", a), MATRIX),
    "torch.lstm_cell": (
        lambda x, w, b: torch.lstm_cell(x, (x, x), w, w, b, b)[0],
        *(MATRIX, (16, 4), (16,)),
    ),
    "torch.gru_cell": (
        lambda x, w, b: torch.gru_cell(x, x, w, w, b, b),
        *(MATRIX, (12, 4), (12,)),
    ),
    "torch.rnn_tanh_cell": (lambda x, w: torch.rnn_tanh_cell(x, x, w, w), MATRIX, MATRIX),
    "torch.rnn_relu_cell": (lambda x, w: torch.rnn_relu_cell(x, x, w, w), MATRIX, MATRIX),
}

_ELEMENTWISE = "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan"
FLOAT32 = {
    **_also_methods(
        _named(
            torch,
            "torch",
            **{name: (MATRIX,) for name in _ELEMENTWISE.split()},
            **{name: (MATRIX,) for name in ("norm", "prod", "std", "sum", "var")},
            pow=(MATRIX, MATRIX),
            dist=(MATRIX, MATRIX),
        )
    ),
    **_operators("pow", MATRIX, MATRIX),
    "Tensor.__rpow__": (lambda x: 2**x, MATRIX),
    "Tensor.__rtruediv__": (lambda x: 2 / x, MATRIX),
    "torch.logsumexp": (lambda x: torch.logsumexp(x, 0), MATRIX),
    "torch.pdist": (torch.pdist, MATRIX),
    "torch.native_layer_norm": (
        lambda x, w, b: torch.native_layer_norm(x, (4,), w, b, 1e-5)[0],
        *(MATRIX, VECTOR, VECTOR),
    ),
    "F.rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), MATRIX, VECTOR),
    "torch.pow(scalar)": (lambda x: torch.pow(x, 3), MATRIX),
    "torch.cumprod": (lambda x: torch.cumprod(x, 0), MATRIX),
    "torch.cumsum": (lambda x: torch.cumsum(x, 0), MATRIX),
    "torch.renorm": (lambda x: torch.renorm(x, 2, 0, 0.5), MATRIX),
    **{
        f"torch.{name}(dim)": (functools.partial(getattr(torch, name), dim=1), MATRIX)
        for name in ("norm", "prod", "std", "sum", "var")
    },
    "torch.norm(nuc)": (lambda x: torch.norm(x, p="nuc"), MATRIX),
    "torch.norm(fro)": (lambda x: torch.norm(x, p="fro", dim=(0, 1)), MATRIX),
    **{
        f"F.interpolate({mode})": (
            lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode),
            (1, 2, *[3] * dims),
        )
        for mode, dims in {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}.items()
    },
    **{
        f"F.interpolate({mode}, {dims}d)": (
            lambda x, mode=mode: F.interpolate(x, size=5, mode=mode),
            (1, 2, *[3] * dims),
        )
        for mode in ("nearest", "nearest-exact")
        for dims in (1, 2, 3)
    },
    "F.interpolate(antialias)": (
        lambda x: F.interpolate(x, size=2, mode="bilinear", antialias=True),
        (1, 2, 4, 4),
    ),
    "F.grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, (2, 4, 4, 2)),
    **_named(F, "F", softplus=(MATRIX,), normalize=(MATRIX,)),
    **{
        f"F.{name}": (functools.partial(getattr(F, name), dim=1), MATRIX)
        for name in ("softmin", "log_softmax", "softmax")
    },
    "F.layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), MATRIX, VECTOR, VECTOR),
    "F.group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE[:1] + (4, 3), VECTOR, VECTOR),
    "F.local_response_norm": (lambda x: F.local_response_norm(x, 2), IMAGE),
    **_named(
        F,
        "F",
        cosine_similarity=(MATRIX, MATRIX),
        poisson_nll_loss=(MATRIX, MATRIX),
        hinge_embedding_loss=(MATRIX, MATRIX),
        huber_loss=(MATRIX, MATRIX),
        kl_div=(MATRIX, MATRIX),
        l1_loss=(MATRIX, MATRIX),
        mse_loss=(MATRIX, MATRIX),
        smooth_l1_loss=(MATRIX, MATRIX),
        soft_margin_loss=(MATRIX, MATRIX),
        triplet_margin_loss=(MATRIX, MATRIX, MATRIX),
        margin_ranking_loss=(VECTOR, VECTOR, VECTOR),
        cosine_embedding_loss=(MATRIX, MATRIX, VECTOR),
        binary_cross_entropy_with_logits=(MATRIX, MATRIX),
    ),
    **{
        f"F.{name}": (_with_classes(getattr(F, name)), MATRIX)
        for name in ("cross_entropy", "nll_loss", "multi_margin_loss")
    },
    "F.cross_entropy(soft)": (F.cross_entropy, MATRIX, MATRIX),
    "F.nll_loss(2d)": (
        lambda x: F.nll_loss(x, torch.zeros(2, 8, 8, dtype=torch.long, device=x.device)),
        IMAGE,
    ),
    "F.multilabel_margin_loss": (
        lambda x: F.multilabel_margin_loss(x, _ints(x, 1, -1, 0, 0)),
        VECTOR,
    ),
    "F.ctc_loss": (
        lambda x: F.ctc_loss(x, _ints(x, 1, 2, 1, 3).view(2, 2), _ints(x, 5, 5), _ints(x, 2, 2)),
        (5, 2, 4),
    ),
    "F.ctc_loss(lists)": (
        lambda x: F.ctc_loss(x, _ints(x, 1, 2, 1, 3).view(2, 2), [5, 5], [2, 2]),
        (5, 2, 4),
    ),
}

#: Run in float32, since torch has not all of them in 16 bits.
FLOAT32_ALONE = {
    **_of_regular(
        "cholesky cholesky_inverse det geqrf inverse logdet matrix_exp pinverse qr slogdet svd "
        "linalg.cholesky linalg.cond linalg.det linalg.eigh linalg.eigvalsh linalg.inv "
        "linalg.ldl_factor linalg.lu linalg.lu_factor linalg.matrix_exp linalg.pinv linalg.qr "
        "linalg.slogdet linalg.svd linalg.svdvals"
    ),
    "torch.linalg.pinv(rtol)": (lambda x: torch.linalg.pinv(_regular(x), rtol=1e-3), MATRIX),
    "torch.linalg.eig": (lambda x: torch.linalg.eig(_regular(x))[0].real, MATRIX),
    "torch.linalg.eigvals": (lambda x: torch.linalg.eigvals(_regular(x)).real, MATRIX),
    **{
        f"torch.{name}": (
            lambda a, b, name=name: operator.attrgetter(name)(torch)(_regular(a), b),
            *(MATRIX, VECTOR),
        )
        for name in ("linalg.solve", "linalg.tensorsolve")
    },
    "torch.linalg.lstsq": (lambda a, b: torch.linalg.lstsq(_regular(a), b)[0], MATRIX, MATRIX),
    "torch.linalg.solve_triangular": (
        lambda a, b: torch.linalg.solve_triangular(_regular(a), b, upper=True),
        *(MATRIX, MATRIX),
    ),
    "torch.linalg.lu_solve": (
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(_regular(a)), b),
        *(MATRIX, MATRIX),
    ),
    "torch.linalg.ldl_solve": (
        lambda a, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(_regular(a)), b),
        *(MATRIX, MATRIX),
    ),
    "torch.linalg.solve_ex": (
        lambda a, b: torch.linalg.solve_ex(_regular(a), b)[0],
        *(MATRIX, MATRIX),
    ),
    "torch.linalg.tensorinv": (lambda x: torch.linalg.tensorinv(_regular(x), ind=1), MATRIX),
    "torch.cholesky_solve": (lambda a, b: torch.cholesky_solve(b, _regular(a)), MATRIX, MATRIX),
    "torch.triangular_solve": (
        lambda a, b: torch.triangular_solve(b, _regular(a))[0],
        *(MATRIX, MATRIX),
    ),
    "torch.linalg.householder_product": (torch.linalg.householder_product, MATRIX, VECTOR),
    "torch.orgqr": (torch.orgqr, MATRIX, VECTOR),
    "torch.ormqr": (torch.ormqr, MATRIX, VECTOR, MATRIX),
    **{
        f"torch.fft.{name}": (_parts(getattr(torch.fft, name)), (3, 5))
        for name in "fft fft2 fftn ifft ifft2 ifftn ihfft ihfft2 ihfftn rfft rfft2 rfftn".split()
    },
    **{
        f"torch.fft.{name}": (getattr(torch.fft, name), (3, 5))
        for name in "hfft hfft2 hfftn irfft irfft2 irfftn".split()
    },
    "torch.stft": (
        lambda x, w: torch.view_as_real(torch.stft(x, 5, window=w, return_complex=True)),
        *((16,), (5,)),
    ),
    "torch.complex": (_parts(torch.complex), MATRIX, MATRIX),
    "torch.polar": (_parts(torch.polar), MATRIX, MATRIX),
    "torch.view_as_complex": (_parts(torch.view_as_complex), (4, 2)),
    "torch.quantile": (lambda x: torch.quantile(x, 0.3), MATRIX),
    "torch.quantile(tensor)": (torch.quantile, MATRIX, VECTOR),
    "torch.nanquantile": (lambda x: torch.nanquantile(x, 0.3), MATRIX),
    "torch.sparse.mm": (lambda a, b: torch.sparse.mm(a.to_sparse(), b), MATRIX, MATRIX),
    "torch.sparse.mm(reduce)": (
        lambda a, b: torch.sparse.mm(a.to_sparse_csr(), b, "sum"),
        *(MATRIX, MATRIX),
    ),
    "torch.sparse.sampled_addmm": (
        lambda c, a, b: torch.sparse.sampled_addmm(c.to_sparse_csr(), a, b).to_dense(),
        *(MATRIX, MATRIX, MATRIX),
    ),
    "torch.sparse.addmm": (
        lambda c, a, b: torch.sparse.addmm(c, a.to_sparse(), b),
        *(MATRIX, MATRIX, MATRIX),
    ),
}
for taken_out in ("cholesky", "qr"):  # by torch 2.14
    if not hasattr(torch.ops.aten, taken_out):
        _, *sizes = FLOAT32_ALONE[f"torch.{taken_out}"]
        FLOAT32_ALONE[f"torch.{taken_out}"] = (lambda *_: pytest.skip("not in this torch"), *sizes)

_COMPARISONS = "eq ge gt le lt ne"
WIDEST = {
    **_also_methods(
        _named(
            torch,
            "torch",
            addcdiv=(MATRIX, MATRIX, MATRIX),
            addcmul=(MATRIX, MATRIX, MATRIX),
            atan2=(MATRIX, MATRIX),
            dot=(VECTOR, VECTOR),
            vdot=(VECTOR, VECTOR),
            add=(MATRIX, MATRIX),
            div=(MATRIX, MATRIX),
            mul=(MATRIX, MATRIX),
        )
    ),
    "torch.cross": (lambda a, b: torch.cross(a, b, dim=1), (4, 3), (4, 3)),
    "torch.linalg.cross": (torch.linalg.cross, (4, 3), (4, 3)),
    "torch.lerp": (lambda a, b: torch.lerp(a, b, 0.5), MATRIX, MATRIX),
    "torch.lerp(tensor)": (torch.lerp, MATRIX, MATRIX, MATRIX),
    "torch.heaviside": (torch.heaviside, MATRIX, MATRIX),
    "torch.meshgrid": (lambda a, b: torch.meshgrid(a, b, indexing="ij")[1], VECTOR, VECTOR),
    "torch.masked_scatter": (lambda a, b: torch.masked_scatter(a, a > 0, b), MATRIX, MATRIX),
    "torch.put": (lambda a, b: torch.put(a, _rows(a), b), MATRIX, VECTOR),
    "torch.index_reduce": (
        lambda a, b: torch.index_reduce(a, 0, _rows(a), b, "mean"),
        *(MATRIX, MATRIX),
    ),
    "torch.scatter": (lambda a, b: torch.scatter(a, 0, _rows(a)[None], b), MATRIX, MATRIX),
    "torch.scatter(add)": (
        lambda a, b: torch.scatter(a, 0, _rows(a)[None], b, reduce="add"),
        *(MATRIX, MATRIX),
    ),
    "torch.scatter_reduce": (
        lambda a, b: torch.scatter_reduce(a, 0, _rows(a)[None], b, "amax"),
        *(MATRIX, MATRIX),
    ),
    "F.embedding_bag": (
        lambda w, each: F.embedding_bag(
            _rows(w).view(1, 4), w, mode="sum", per_sample_weights=each
        ),
        *(MATRIX, (1, 4)),
    ),
    "torch.bilinear": (
        lambda x, y, w: torch.bilinear(x, y, w, None),
        *((2, 3), (2, 4), (5, 3, 4)),
    ),
    **_operators("add sub mul truediv radd rsub rmul", MATRIX, MATRIX),
    "torch.div(floor)": (lambda a, b: torch.div(a, b, rounding_mode="floor"), MATRIX, MATRIX),
    "torch.tensordot": (lambda a, b: torch.tensordot(a, b, 1), MATRIX, MATRIX),
    "torch.index_add": (lambda a, b: torch.index_add(a, 0, _rows(a), b), MATRIX, MATRIX),
    "torch.index_copy": (lambda a, b: torch.index_copy(a, 0, _rows(a), b), MATRIX, MATRIX),
    "torch.index_put": (lambda a, b: torch.index_put(a, (_rows(a),), b), MATRIX, MATRIX),
    "torch.scatter_add": (lambda a, b: torch.scatter_add(a, 0, _rows(a)[None], b), MATRIX, MATRIX),
    "torch.cat": (lambda a, b: torch.cat([a, b]), MATRIX, MATRIX),
    "torch.stack": (lambda a, b: torch.stack((a, b)), MATRIX, MATRIX),
}
COMPARISONS = {
    **_also_methods(
        _named(torch, "torch", **{name: (MATRIX, MATRIX) for name in _COMPARISONS.split()})
    ),
    **_operators(_COMPARISONS, MATRIX, MATRIX),
    "torch.equal": (torch.equal, MATRIX, MATRIX),
    "torch.isclose": (torch.isclose, MATRIX, MATRIX),
    "torch.allclose": (torch.allclose, MATRIX, MATRIX),
    "torch.searchsorted": (torch.searchsorted, VECTOR, MATRIX),
    "torch.bucketize": (lambda a, b: torch.bucketize(a, b[0]), MATRIX, MATRIX),
}

"""What O1 casts of torch's own functions."""

from __future__ import annotations

import torch

__all__ = ["CASTS", "FP16_FUNCS", "FP32_FUNCS", "MODULE", "SEQUENCE_CASTS"]

MODULE = torch

#: In the 16-bit type.
FP16_FUNCS = """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc
prelu addmm addmv addr matmul mm mv addbmm baddbmm bmm""".split()

#: In float32.
FP32_FUNCS = """acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow cumprod
cumsum dist norm prod std sum var renorm""".split()

#: In the widest of their arguments' types.
CASTS = """addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne""".split()

#: In the widest type of a sequence of tensors.
SEQUENCE_CASTS = ["cat", "stack"]

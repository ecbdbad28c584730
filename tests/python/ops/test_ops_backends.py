"""The same tests with the ATen backend."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOMS = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize(
    "names", [("ops/test_ops.py", "ops/test_ops_random.py"), ("telemetry/test_telemetry.py",)]
)
def test_without_kernels(names):
    files = [str(ROOMS / name) for name in names]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        env={**os.environ, "TORCHAMP_KERNELS": "aten"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout


def test_ops_on_meta_tensors_do_nothing():
    code = (
        "import torch; from torchamp import ops; "
        "x = torch.empty(3, device='meta'); f = torch.empty((), device='meta'); "
        "ops.scale([x], [x], 2.0, f); ops.check([x], f); "
        "norm, norms = ops.l2norm([x, None], per_tensor=True); "
        "assert norm.is_meta and norm.shape == () and norms.shape == (2,)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""Ranks send and keep the bytes that docs/planning.md says."""

import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))
if not distributed.is_available():
    pytest.skip("torch has no distributed", allow_module_level=True)

import traffic  # noqa: E402


@pytest.mark.soak
@pytest.mark.skipif(
    torch.__version__ < (2, 7), reason="this torch's fully_shard does not run on the CPU"
)
def test_two_ranks_send_and_keep_what_the_formulas_say() -> None:
    counted = traffic.counted_on(2)
    assert list(counted) == ["DistributedDataParallel", "fully_shard"]
    for name, (_, sent, kept) in traffic.WAYS.items():
        # The agreement's 4 bytes, and no others.
        assert counted[name].sent == pytest.approx(sent(2), rel=1e-5), name
        assert counted[name].kept == pytest.approx(kept(2)), name
    agreements = [counted[name].agreements for name in counted]
    assert agreements == [0, 1]

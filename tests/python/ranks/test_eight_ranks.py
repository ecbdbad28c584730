"""What the tests of two and four ranks show, on eight."""

import pytest
from processes import gloo
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch has no distributed", allow_module_level=True)

import test_agreement  # noqa: E402
import test_ddp  # noqa: E402
import test_dtensor  # noqa: E402

CASES = {
    **{name: test_ddp.CASES[name] for name in ("no_sync-O2-inside", "no_sync-O5-fused_adamw")},
    "agreement": test_agreement.CASES["O2-fused_adamw"],
    **{name: test_dtensor.CASES[name] for name in ("scaled-FSDP-adamw", "FSDP-O2-adamw")},
}


@pytest.mark.soak
def test_eight_ranks() -> None:
    outcomes = gloo.run(8, CASES)
    assert not any(outcomes.values()), outcomes

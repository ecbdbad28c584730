import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_scopes_end() -> Iterator[None]:
    """A torch.autocast that an earlier test has left in a generator ends when that is collected,
    and takes the thread back to before it: out of float8."""
    gc.disable()
    yield
    gc.enable()

"""apex's deprecation warnings: defined for programs that filter them, and never raised."""

import warnings

import apex
import pytest
import torch
from torch import distributed, nn


def test_a_warning_has_apexs_category():
    assert issubclass(apex.DeprecatedFeatureWarning, FutureWarning)
    with pytest.warns(apex.DeprecatedFeatureWarning, match="old") as seen:
        apex.deprecated_warning("old")
    assert seen[0].filename == __file__


@pytest.mark.parametrize(("rank", "warned"), [(0, 1), (1, 0)])
def test_only_the_first_rank_warns(rank, warned, monkeypatch):
    """apex tested the truth of a function object, which is always true."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: rank)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        apex.deprecated_warning("old")
    assert len(seen) == warned


def test_nothing_here_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Linear(2, 2)
        optimizer = apex.optimizers.FusedAdam(model.parameters())
        apex.parallel.convert_syncbn_model(nn.BatchNorm1d(2))
        apex.amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
        apex.fp16_utils.FP16Model(nn.Linear(2, 2))
        apex.fp16_utils.FP16_Optimizer(torch.optim.SGD(nn.Linear(2, 2).half().parameters(), 0.1))

"""Messages go to the logger "torchamp", or to stderr where the program has set up no logging."""

from __future__ import annotations

import pytest

TRAIN = """
import torch
from torchamp import amp

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity={verbosity})
loss = model(torch.ones(2, 4)).sum()
with amp.scale_loss(loss * {factor}, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
amp.telemetry(optimizer)
"""

TO_STDOUT = "import logging, sys; logging.basicConfig(stream=sys.stdout, level=logging.{level})\n"


@pytest.fixture
def run(python, tmp_path):
    """Runs code after which a step is skipped, or not; returns what it wrote to stdout, stderr."""

    def start(before: str = "", verbosity: int = 1, factor: float = 1e30) -> tuple[str, str]:
        code = before + TRAIN.format(verbosity=verbosity, factor=factor)
        redirected = f"import sys; sys.stderr = open('err', 'w')\n{code}"
        out = python("-W", "ignore", "-c", redirected)
        return out, (tmp_path / "err").read_text()

    return start


def test_without_logging_messages_go_to_stderr(run):
    out, err = run()
    assert out == ""
    assert err.startswith("torchamp: opt_level O2: float16 model")
    assert "torchamp: gradient overflow in loss 0, at weight, bias: step skipped" in err


def test_a_program_that_has_set_up_logging_gets_them_once(run):
    out, err = run(TO_STDOUT.format(level="INFO"))
    assert err == ""
    assert out.count("INFO:torchamp:opt_level O2") == 1
    assert out.count("INFO:torchamp:gradient overflow") == 1


def test_logging_that_is_set_up_later_gets_the_later_ones(run):
    code = f"import torchamp; torchamp._logging.log(20, 'first')\n{TO_STDOUT.format(level='INFO')}"
    out, err = run(code)
    assert err == "torchamp: first\n"
    assert out.count("gradient overflow") == 1


def test_levels_choose(run):
    assert run(TO_STDOUT.format(level="WARNING")) == ("", "")
    quiet = "import logging; logging.getLogger('torchamp').setLevel(logging.ERROR)\n"
    assert run(quiet) == ("", "")
    assert run("import logging; logging.getLogger('torchamp').disabled = True\n") == ("", "")


def test_verbosity_0_logs_nothing(run):
    assert run(verbosity=0) == ("", "")
    assert run(TO_STDOUT.format(level="DEBUG"), verbosity=0) == ("", "")

"""Messages go to the logger "torchamp", or to stderr where no logging can write them."""

from __future__ import annotations

import ctypes
import io
import logging
import pathlib
import re
import warnings

import pytest
import torch
from nets import linear_net, overflow_at, sgd, train_step

import torchamp
from torchamp import amp
from torchamp._logging import log

TRAIN = """
import torch
import torchamp
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
        out = python("-c", redirected)
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


@pytest.mark.parametrize(
    "before, verbosity",
    [
        (TO_STDOUT.format(level="WARNING"), 1),
        ("import logging; logging.getLogger('torchamp').setLevel(logging.ERROR)\n", 1),
        ("import logging; logging.getLogger('torchamp').disabled = True\n", 1),
        ("", 0),
        (TO_STDOUT.format(level="DEBUG"), 0),
    ],
)
def test_levels_and_verbosity_choose(run, before, verbosity):
    assert run(before, verbosity) == ("", "")


def test_basic_config_hides_info_until_the_logger_has_its_level(run):
    """As docs/diagnosis.md says."""
    shown = "logging.getLogger('torchamp').setLevel(logging.INFO)\n"
    out, err = run("import logging, sys; logging.basicConfig(stream=sys.stdout)\n" + shown)
    assert err == "" and "INFO:torchamp:gradient overflow in loss 0" in out


# Handlers that need what only the program's own records have.


def add_rank(record: logging.LogRecord) -> bool:
    record.rank = 3
    return True


class OncePerText(logging.Filter):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def filter(self, record):
        is_new = record.getMessage() not in self.seen
        self.seen.add(record.getMessage())
        return is_new


@pytest.fixture
def root_handler(caplog):
    """Adds a handler to the root logger; gives it and what it writes."""
    root, written = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(rank)s: %(message)s"))
    root.addHandler(handler)
    for name in (None, "torchamp"):
        caplog.set_level(logging.INFO, name)
    yield handler, written
    root.removeHandler(handler)


def test_a_handler_that_needs_more_gets_the_program_s_records_alone(
    root_handler, capsys, caplog, monkeypatch
):
    """As NVIDIA's GNMT: a filter of the root logger adds to the records of that logger only."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "filters", [add_rank])
    root.info("of the program")
    log(logging.INFO, "of torchamp")
    assert root_handler[1].getvalue() == "3: of the program\n"
    assert capsys.readouterr().err == "torchamp: of torchamp\n"
    assert caplog.messages == ["of the program"]


@pytest.mark.parametrize("style", ["%", "{", "$"])
def test_any_style_of_format_may_need_more(root_handler, capsys, style):
    handler, written = root_handler
    formats = {"%": "%(rank)d %(message)s", "{": "{rank} {message}", "$": "$rank $message"}
    handler.setFormatter(logging.Formatter(formats[style], style=style))
    log(logging.INFO, "of torchamp")
    assert written.getvalue() == ""
    assert capsys.readouterr().err == "torchamp: of torchamp\n"


@pytest.mark.parametrize("where", ["handler", "logger"])
def test_filters_that_add_what_it_needs_are_asked(root_handler, capsys, where, monkeypatch):
    handler, written = root_handler
    filtered = handler if where == "handler" else logging.getLogger("torchamp")
    monkeypatch.setattr(filtered, "filters", [add_rank])
    log(logging.INFO, "of torchamp")
    assert written.getvalue() == "3: of torchamp\n" and capsys.readouterr().err == ""


@pytest.mark.parametrize("where, heard", [("handler", 2), ("logger", 1)])
def test_a_filter_that_drops_repeats_sees_each_message_once(
    root_handler, caplog, where, heard, monkeypatch
):
    handler, written = root_handler
    handler.setFormatter(logging.Formatter("%(message)s"))
    filtered = handler if where == "handler" else logging.getLogger("torchamp")
    monkeypatch.setattr(filtered, "filters", [OncePerText()])
    for _ in range(2):
        log(logging.INFO, "of torchamp")
    assert written.getvalue() == "of torchamp\n" and caplog.messages == ["of torchamp"] * heard


def test_a_handler_of_a_higher_level_is_not_asked(root_handler, caplog, capsys):
    root_handler[0].setLevel(logging.ERROR)
    log(logging.INFO, "of torchamp")
    assert caplog.messages == ["of torchamp"] and capsys.readouterr().err == ""


# Messages of the library, which speaks C++.

LOG_MESSAGE = (
    "_ZN8torchamp11log_messageENS_8LogLevelERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
)


class _String(ctypes.Structure):
    """A std::string of libstdc++ that is only read."""

    _fields_ = (("text", ctypes.c_char_p), ("size", ctypes.c_size_t), ("rest", ctypes.c_char * 16))


def log_in_cpp(level: int, text: str) -> None:
    """torchamp::log_message."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    path = re.search(r"/\S*/libtorchamp\.so", maps)[0]
    data = text.encode()
    ctypes.CDLL(path)[LOG_MESSAGE](level, ctypes.byref(_String(data, len(data))))


@pytest.mark.skipif(not torch._C._GLIBCXX_USE_CXX11_ABI, reason="needs the newer std::string")
def test_messages_of_the_library_are_of_the_logger_and_warnings(caplog):
    caplog.set_level(logging.INFO, "torchamp")
    log_in_cpp(logging.INFO, "a fact")
    assert caplog.messages == ["a fact"]
    with pytest.warns(UserWarning, match="^a mistake$") as seen:
        log_in_cpp(logging.WARNING, "a mistake")
    assert seen[0].filename == __file__


# The line of the program.


@pytest.fixture(params=["amp", "apex"])
def initialize(request):
    """torchamp.amp's, and the one that apex.amp has."""
    if request.param == "amp":
        return amp.initialize
    from apex import amp as apex_amp

    return apex_amp.initialize


def test_records_have_the_line_of_the_program(initialize, caplog):
    caplog.set_level(logging.INFO, "torchamp")
    model = linear_net()
    optimizer = sgd(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which wraps step
    model, optimizer = initialize(model, optimizer, opt_level="O2")
    with overflow_at(model[0].weight):
        train_step(model, optimizer)
    amp.telemetry(optimizer)
    assert len(caplog.records) == 2
    first, skipped = caplog.records
    assert (first.pathname, first.funcName) == (
        __file__,
        "test_records_have_the_line_of_the_program",
    )
    assert skipped.filename in ("nets.py", "test_logging.py")


def test_warnings_have_the_line_of_the_program(initialize):
    model = linear_net()
    optimizers = [sgd(model), sgd(linear_net())]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        initialize(model.double(), optimizers, opt_level="O2", verbosity=0)
        optimizers[0].step()
    assert len(seen) == 3 and {each.filename for each in seen} == {__file__}
    assert [each.lineno - seen[0].lineno for each in seen] == [0, 0, 1]


def a_closed_one(owner: torchamp.Amp):
    owner.close()
    owner.models[0](torch.ones(1, 4))


WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
PROGRAMS = [
    a_closed_one,
    pytest.param(lambda _: torchamp.GradScaler(), id="scaler", marks=WITHOUT_CUDA),
    pytest.param(lambda _: torchamp.autocast("cuda"), id="autocast", marks=WITHOUT_CUDA),
    pytest.param(lambda _: torchamp.autocast(), id="cuda_autocast", marks=WITHOUT_CUDA),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_has_the_line_of_the_program(program):
    """The line is that of a function of this file."""
    owner = torchamp.Amp(linear_net(), None, "O1", verbosity=0)
    with pytest.warns(UserWarning) as seen:
        program(owner)
    (warning,) = seen
    first = program.__code__.co_firstlineno
    assert warning.filename == __file__ and first <= warning.lineno < first + 12


def test_a_warning_is_given_once_a_line():
    model = linear_net().double()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            amp.initialize(model, opt_level="O2", verbosity=0)
            amp.release(model)
            model.double()
    assert len(seen) == 1

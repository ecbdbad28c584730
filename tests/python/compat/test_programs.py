"""Programs in the style of 2018 to 2021, unchanged under the alias: they learn, skip, have their
level's weights, and resume. Each has its own assertions too."""

import pathlib
import re

import pytest
from processes.forked import output_of

FOLDER = pathlib.Path(__file__).parent / "programs"
LEVELS = ["O0", "O1", "O2", "O3"]
at_levels = pytest.mark.parametrize(
    "level",
    [pytest.param(level, marks=[pytest.mark.soak] * (level in ("O0", "O3"))) for level in LEVELS],
)

#: By program: the upper bound of the ratio of last to first loss.
LEARNS = {
    "bert_finetune": 0.3,
    "dcgan": 0.7,
    "ema": 0.3,
    "imagenet": 0.5,
    "pretrain_lamb": 0.7,
}


def command(program: str, level: str) -> list[str]:
    return ["-m", "torchamp.apex", str(FOLDER / f"{program}.py"), "--opt-level", level]


@pytest.fixture
def run_program(python):
    def run(program: str, level: str, *arguments: str) -> str:
        return python(*command(program, level), *arguments)

    return run


def losses_of(said: str) -> list[float]:
    return [float(found) for found in re.findall(r"^loss (\S+)", said, re.MULTILINE)]


def printed(said: str, name: str) -> str:
    return re.search(rf"\b{name} (\S+)", said).group(1)


def test_every_program_is_in_the_table():
    assert set(LEARNS) == {file.stem for file in FOLDER.glob("*.py")}


@at_levels
@pytest.mark.parametrize("program", LEARNS)
def test_it_trains(run_program, program, level):
    said = run_program(program, level)
    losses = losses_of(said)
    assert losses[-1] < LEARNS[program] * losses[0], said
    weights = "float16" if level in ("O2", "O3") else "float32"
    assert printed(said, "weights") == f"torch.{weights}"
    if " batchnorm " in said:
        assert printed(said, "batchnorm") == f"torch.float{16 if level == 'O3' else 32}"
    if program == "pretrain_lamb":  # whose first loss scale is too high
        assert "skip" in said


@pytest.mark.soak
def test_from_the_command_line(new_python):
    said = new_python(*command("ema", "O2"))
    assert printed(said, "weights") == "torch.float16"


@pytest.mark.parametrize(
    ("level", "arguments", "batchnorm"),
    [
        ("O2", ["--keep-batchnorm-fp32", "False"], "float16"),
        ("O3", ["--keep-batchnorm-fp32", "True"], "float32"),
        ("O1", ["--loss-scale", "128.0"], "float32"),
        ("O2", ["--loss-scale", "dynamic"], "float32"),
    ],
)
def test_strings_from_the_command_line(run_program, level, arguments, batchnorm):
    said = run_program("imagenet", level, *arguments)
    assert printed(said, "batchnorm") == f"torch.{batchnorm}"
    assert losses_of(said)[-1] < 0.5 * losses_of(said)[0]


@at_levels
@pytest.mark.parametrize(("program", "at"), [("imagenet", 1), ("pretrain_lamb", 7)])
def test_resuming_is_as_never_having_stopped(run_program, program, at, level):
    whole = run_program(program, level, "--save", "%d.pt")
    rest = run_program(program, level, "--resume", f"{at}.pt")
    assert printed(rest, "sum") == printed(whole, "sum")
    assert losses_of(rest) == losses_of(whole)[at + 1 :]


@at_levels
def test_two_ranks_stay_together(start_python, level, tmp_path):
    common = [*command("imagenet", level), "--sync_bn", "--world-size", "2"]
    common += ["--rendezvous", f"file://{tmp_path}/rendezvous"]
    ranks = [start_python(*common, "--local_rank", str(rank)) for rank in range(2)]
    first, second = (output_of(rank.wait()) for rank in ranks)
    assert printed(first, "sum") == printed(second, "sum")
    assert losses_of(first) != losses_of(second)
    assert losses_of(first)[-1] < 0.5 * losses_of(first)[0]

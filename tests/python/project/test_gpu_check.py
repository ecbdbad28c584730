"""`make gpu-check` without a card: its own stages, with other commands."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "gpu_check"
sys.path.insert(0, str(FOLDER))

import run as command  # noqa: E402
import runner as runner_module  # noqa: E402
import stages as gpu_check  # noqa: E402
from record import Record  # noqa: E402
from runner import Runner, Stage, to_run  # noqa: E402

MACHINE = {"device": "NVIDIA Fake 80GB", "arch": "90", "torch": torch.__version__}

#: A stage whose child writes until it is stopped.
WRITES = ["sh", "-c", "(while :; do echo x; sleep 0.05; done >>{}) & echo group $$; wait"]


def writes_to(path):
    return [part.format(path) for part in WRITES]


def grows(path):
    size = path.stat().st_size
    time.sleep(0.5)
    return path.stat().st_size > size


@pytest.fixture
def setting(tmp_path):
    return gpu_check.Setting(tmp_path / "build", tmp_path / "out", "cuda", "90", None, 16)


def faked(setting, commands=None, **changes):
    """The stages of gpu-check; each prints its name, except those with other commands."""
    commands = commands or {}
    fakes = []
    for stage in gpu_check.stages(setting):
        command = commands.get(stage.name, ["echo", stage.name])
        fakes.append(dataclasses.replace(stage, command=command, program=None, **changes))
    return fakes


def run(stages, folder, budget=1000.0, resumes=False, only=()):
    """Runs them; returns the record and its entries by name."""
    record = Record(folder, MACHINE, resumes)
    Runner(record, time.monotonic() + budget, ROOT).run_all(stages, only)
    return record, outcomes(record.path)


def outcomes(path):
    return {stage["name"]: stage for stage in json.loads(path.read_text())["stages"]}


def script(text):
    return [sys.executable, "-c", text]


def names_of(stages):
    return [stage.name for stage in stages]


def test_short_informative_stages_come_first(setting):
    names = names_of(gpu_check.stages(setting))
    kinds = ["configure", "build", "smoke", "GPU tests", "bench_step", "C++ kernel", "memcheck"]
    first = [next(i for i, name in enumerate(names) if name.startswith(kind)) for kind in kinds]
    assert first == sorted(first)


def test_all_stages_can_pass(setting, capsys):
    stages = faked(setting)
    record, known = run(stages, setting.out)
    assert {stage["status"] for stage in known.values()} == {"passed"}
    assert list(known) == names_of(stages) and not record.failed()
    assert record.summary() == f"{len(stages)} of {len(stages)} stages passed"
    log = (setting.out / "gpu-check.log").read_text()
    assert re.findall(r"^== (.*), for at most", log, re.M) == names_of(stages)
    assert f"== {stages[-1].name}: passed" in capsys.readouterr().out


def test_a_record_that_can_be_kept(setting):
    record, known = run(
        [Stage("smoke", ["echo", '{"backend": "fatbin"}'], 9), Stage("{", ["echo", "{"], 9)],
        setting.out,
    )
    assert re.fullmatch(r"gpu-check-nvidia-fake-80gb-\d{4}-\d\d-\d\d.json", record.path.name)
    facts = json.loads(record.path.read_text())
    assert facts["machine"] == MACHINE and facts["date"] in record.path.name
    assert known["smoke"]["result"] == {"backend": "fatbin"} and known["{"]["result"] is None


def test_a_stage_that_hangs_is_stopped_with_its_children(tmp_path):
    written = tmp_path / "written"
    stages = [Stage("hangs", writes_to(written), 1.5), Stage("next", ["true"], 9)]
    record, known = run(stages, tmp_path)
    assert (known["hangs"]["status"], known["hangs"]["reason"]) == ("timed out", "at its limit")
    assert 1 < known["hangs"]["seconds"] < 3
    assert known["hangs"]["tail"][0].startswith("group ")
    assert known["next"]["status"] == "passed" and record.failed()
    assert not grows(written)


def test_a_failure_stops_only_what_needs_it(setting):
    commands = {"smoke aten": ["sh", "-c", "echo broken; exit 3"], "bench_training": ["/no/such"]}
    record, known = run(faked(setting, commands), setting.out)
    failed = {"smoke aten": "exit status 3", "GPU tests on aten": "needs smoke aten"}
    for name, reason in failed.items():
        assert known.pop(name)["reason"] == reason
    assert "/no/such" in known.pop("bench_training")["reason"]
    assert {stage["status"] for stage in known.values()} == {"passed"}
    assert record.failed()
    assert "; failed (exit status 3): smoke aten; failed (" in record.summary()
    assert record.summary().endswith("; not run (needs smoke aten): GPU tests on aten")


def test_a_failed_build_leaves_nothing_to_run(setting):
    _, known = run(faked(setting, {"build": ["false"]}), setting.out)
    assert known.pop("configure")["status"] == "passed"
    assert known.pop("build")["status"] == "failed"
    assert {stage["status"] for stage in known.values()} == {"not run"}


def test_a_stage_begins_only_if_it_can_end(tmp_path):
    stages = [Stage("long", ["true"], 50), Stage("short", ["true"], 9)]
    record, known = run(stages, tmp_path, budget=20)
    assert (known["long"]["status"], known["long"]["reason"]) == ("not run", "no time left")
    assert known["short"]["status"] == "passed" and not record.failed()


def begun(folder, stages, **options):
    """The names of the stages that a run begins."""
    log = folder / "gpu-check.log"
    log.unlink(missing_ok=True)
    run(stages, folder, **options)
    return re.findall(r"^== (.*), for at most", log.read_text() if log.exists() else "", re.M)


def test_a_run_that_resumes_leaves_out_what_has_passed(setting):
    broken = faked(setting, {"bench_ops": ["false"]})
    run(broken, setting.out)
    assert begun(setting.out, faked(setting), resumes=True) == [
        "configure",  # what it built may be gone
        "build",
        "bench_ops",
        "roofline",
    ]
    record, known = run(faked(setting), setting.out, resumes=True)
    assert {stage["status"] for stage in known.values()} == {"passed"}
    assert not begun(setting.out, faked(setting), resumes=True)
    assert len(begun(setting.out, faked(setting))) == len(known)


def test_another_machines_record_is_not_resumed(setting, monkeypatch):
    run(faked(setting), setting.out)
    monkeypatch.setitem(MACHINE, "torch", "9.9")
    assert len(begun(setting.out, faked(setting), resumes=True)) == len(faked(setting))


def test_only_what_was_named_and_what_it_needs(setting):
    only = ["GPU tests on nvrtc"]
    names = ["configure", "build", "smoke nvrtc", *only]
    assert begun(setting.out, faked(setting), only=only) == names
    known = outcomes(next(setting.out.glob("*.json")))
    assert known["bench_step"]["reason"] == "not chosen"
    assert to_run(faked(setting), only, passed=names[:-1]) == {*only, "build", "configure"}


def test_three_runs_see_all_stages_at_their_limits(setting, monkeypatch):
    """Builds that are repeated take ten seconds."""
    now, built = [0.0], set()

    def wait(self, stage):
        now[0] += 10 if stage.name in built else stage.limit
        built.update([stage.name] if stage.builds else [])
        return 0

    monkeypatch.setattr(runner_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Runner, "_wait", wait)
    for _ in range(3):
        record, known = run(faked(setting), setting.out, budget=580, resumes=True)
    assert {stage["status"] for stage in known.values()} == {"passed"}
    assert now[0] < 3 * 580


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "9"], "expected --budget to be at least 200, the limit of 'build', got 9"),
        (
            ["--patience", "3"],
            "expected --budget to be at least 600, the limit of 'build', got 580",
        ),
        (["--only", "racks"], "expected --only to name stages, got 'racks'; the stages are ['con"),
    ],
)
def test_options_that_fit_no_stage(options, words, tmp_path):
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--without-card", *options],
        env={**os.environ, "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.startswith(f"gpu-check: {words}")
    assert not (tmp_path / "out").exists()


def test_without_googletest_only_the_cpp_tests_are_left_out(setting):
    module = (ROOT / "cmake" / "TorchampGoogleTest.cmake").read_text()
    (message,) = re.findall(r"the C\+\+ tests need GoogleTest", module)
    commands = {"C++ tests: configure": ["sh", "-c", f"echo 'torchamp: {message}: …'; exit 1"]}
    record, known = run(faked(setting, commands), setting.out)
    assert known["C++ tests: configure"]["reason"] == f"torchamp: {message}: …"
    left_out = [name for name, stage in known.items() if stage["status"] == "not run"]
    assert left_out == [name for name in known if "C++" in name]
    assert not record.failed()


def test_without_nvcc_only_its_backend_is_left_out(setting):
    source = (ROOT / "csrc" / "cuda" / "loader.cpp").read_text()
    (message,) = re.findall(r"torchamp was built without nvcc", source)
    commands = {"smoke aot": ["sh", "-c", f"echo 'RuntimeError: fatbin: {message}'; exit 1"]}
    record, known = run(faked(setting, commands), setting.out)
    left_out = [name for name, stage in known.items() if stage["status"] == "not run"]
    assert left_out == ["smoke aot"] and not record.failed()


def test_without_compute_sanitizer_its_tools_are_left_out(setting, monkeypatch):
    monkeypatch.setenv("PATH", "")
    tools = ["memcheck", "initcheck", "racecheck"]
    stages = [
        dataclasses.replace(stage, needs=())
        for stage in gpu_check.stages(setting)
        if stage.name in tools
    ]
    record, known = run(stages, setting.out)
    reasons = {name: stage["reason"] for name, stage in known.items()}
    assert reasons == dict.fromkeys(tools, "no compute-sanitizer on PATH")
    assert not record.failed()


def program(stages, folder):
    """Starts a Python process that runs stages, given as code."""
    code = f"""
import sys, time
sys.path.insert(0, {str(FOLDER)!r})
from pathlib import Path
from record import Record
from runner import Runner, Stage

record = Record(Path({str(folder)!r}), {MACHINE!r})
Runner(record, time.monotonic() + 90, Path.cwd()).run_all({stages})
print(record.summary())
sys.exit(record.failed())
"""
    return subprocess.Popen(script(code), stdout=subprocess.PIPE, text=True)


def wait_for_group(folder):
    """The process group that the running stage reports."""
    log = folder / "gpu-check.log"
    for _ in range(200):
        found = re.search(r"^group (\d+)$", log.read_text(), re.M) if log.exists() else None
        if found:
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError("no stage was begun in ten seconds")


STAGES = """[
    Stage("first", ["echo", '{{"seconds": 2}}'], 9),
    Stage("second", {}, 50),
    Stage("third", ["true"], 9),
]"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_was_done_is_there_when_the_run_is_killed(tmp_path, number):
    written = tmp_path / "written"
    process = program(STAGES.format(writes_to(written)), tmp_path)
    group = wait_for_group(tmp_path)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=10)
    assert process.returncode != 0
    known = outcomes(next(tmp_path.glob("gpu-check-*.json")))
    assert known["first"]["result"] == {"seconds": 2}
    assert (known["third"]["status"], known["third"]["reason"]) == ("not run", "not reached")
    if number == signal.SIGKILL:
        assert known["second"]["status"] == "running"
        os.killpg(group, signal.SIGKILL)
        return
    assert known["second"]["status"] == "interrupted"
    assert printed.endswith("interrupted: second; not run (not reached): third\n")
    assert not grows(written)


def test_what_lies_in_out_stays(setting):
    setting.out.mkdir()
    other = setting.out / "other.json"
    other.write_text("kept")
    run(faked(setting), setting.out)
    assert other.read_text() == "kept"


def test_few_files_and_small_ones_go_to_out(setting):
    """Redirects the builds; each benchmark writes a file."""
    parts = [str(part) for stage in gpu_check.stages(setting) for part in stage.command]
    written = {part for part in parts if part.startswith(str(setting.out))}
    benchmarks = ["bench_step", "bench_training", "bench_ops", "bench_variants"]
    assert written == {str(setting.out / f"{name}.json") for name in benchmarks}


def test_an_earlier_runs_measurements_are_not_taken_for_new(setting):
    setting.cache.mkdir(parents=True)
    setting.out.mkdir()
    rows = setting.rows_of("bench_step")
    rows.write_text("{}")
    command.forget_earlier_runs(setting)
    assert not rows.exists() and not setting.cache.exists() and setting.out.exists()


def test_stages_find_the_build_tree(setting, tmp_path):
    environment = setting.environment()
    print_it = ["sh", "-c", "echo $TORCHAMP_BUILD_DIR $PYTHONPATH"]
    _, known = run([Stage("environment", print_it, 9, environment=environment)], tmp_path)
    (line,) = known["environment"]["tail"]
    assert line.split(":")[0] == f"{setting.build} {setting.build}/python"


@pytest.mark.parametrize("given", ["results", None])
def test_results_go_where_out_says(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUT", given or "")
    setting = command.setting_of(MACHINE, "cuda")
    assert setting.out == (tmp_path / given if given else ROOT / "out" / "gpu")
    assert setting.build == ROOT / "build-gpu" and setting.arch == "90"


FAKE_DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int* count) { return *count = DEVICES, 0; }
"""
FAKE_TORCH = """
from types import SimpleNamespace

__version__ = "2.11.0+cu130"
version = SimpleNamespace(cuda="13.0")
card = SimpleNamespace(
    name="NVIDIA Fake 80GB", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30
)
cuda = SimpleNamespace(is_available=lambda: {sees}, get_device_properties=lambda device: card)
"""


def describe_card(folder, devices=1, sees=True):
    """Runs card.py with this many devices in the driver, and torch seeing one or none."""
    (folder / "driver.c").write_text(FAKE_DRIVER)
    library = folder / "libcuda.so.1"
    options = ["-shared", "-fPIC", f"-DDEVICES={devices}", "-o", library]
    subprocess.run(["cc", *options, folder / "driver.c"], check=True)
    (folder / "torch.py").write_text(FAKE_TORCH.format(sees=sees))
    return subprocess.run(
        [sys.executable, FOLDER / "card.py", "cuda"],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


@needs_compiler
def test_a_card_is_described(tmp_path):
    done = describe_card(tmp_path)
    facts = json.loads(done.stdout)
    assert facts["device"] == "NVIDIA Fake 80GB" and facts["arch"] == "90"
    assert facts["memory_gib"] == 80 and facts["torch"] == "2.11.0+cu130"
    assert {"driver", "nvcc", "cmake", "c++", "compute-sanitizer", "python", "cores"} <= {*facts}


@needs_compiler
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"devices": 0}, "no card: the CUDA driver sees 0 devices (status 0)"),
        ({"sees": False}, "no card: torch 2.11.0+cu130 sees none (CUDA 13.0)"),
    ],
)
def test_a_card_that_cannot_be_used_is_none(given, words, tmp_path):
    done = describe_card(tmp_path, **given)
    assert done.returncode == 1 and done.stderr == words + "\n"


def test_every_script_is_there(setting):
    scripts = [Path(str(part)) for stage in gpu_check.stages(setting) for part in stage.command]
    missing = [path for path in scripts if path.suffix == ".py" and not (ROOT / path).exists()]
    assert not missing


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a card")
def test_without_a_card_it_says_so_and_writes_nothing(tmp_path):
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py"],
        env={**os.environ, "OUT": str(out)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("no card: ") and "NOTHING WAS RUN" in done.stderr
    assert not out.exists()


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_passes_its_options_on():
    given = ["PYTHON=python-of-mine", "MAX_JOBS=3", "GTEST_SOURCE=gtest", "GPU_CHECK=--budget 9"]
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "gpu-check", *given], cwd=ROOT, capture_output=True
    )
    wanted = 'GTEST_SOURCE="gtest" MAX_JOBS=3 python-of-mine tests/gpu_check/run.py --budget 9'
    assert done.stdout.decode().splitlines()[-1] == wanted

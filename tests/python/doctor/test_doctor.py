"""The doctor's report: a line per finding, the remedy under it, the worst status as the result."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import torchamp
from torchamp import _load, doctor
from torchamp.doctor import Finding


def test_report_puts_the_remedy_under_the_finding() -> None:
    findings = [Finding("CMake", "4.0"), Finding("torch", "none", 2, "pip install torch")]
    assert doctor.report(findings).splitlines() == [
        "    ok  CMake: 4.0",
        "BROKEN  torch: none",
        "        -> pip install torch",
        "torchamp is not ready: torch",
    ]


@pytest.mark.parametrize(
    "statuses, verdict",
    [
        ([0, 0, 0], "torchamp is ready"),
        ([1, 0, 1], "torchamp is ready, and could work better: a, c"),
        ([1, 2, 0], "torchamp is not ready: b"),
    ],
)
def test_the_last_line_is_the_verdict(statuses: list, verdict: str) -> None:
    findings = [Finding(name, "", status) for name, status in zip("abc", statuses)]
    assert doctor.report(findings).splitlines()[-1] == verdict


def test_two_copies_of_torch_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "torch").mkdir(parents=True)
        (tmp_path / name / "torch" / "version.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    finding = doctor.check_torch_copies()
    assert finding.status == 1
    assert "second" in finding.found


def test_main_returns_the_worst_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    findings = [Finding("a", "fine"), Finding("b", "bad", 2), Finding("c", "meh", 1)]
    monkeypatch.setattr(doctor, "find", lambda: findings)
    assert doctor.main([]) == 2
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert doctor.main(["--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {
        "status": "broken",
        "findings": [
            {"subject": "a", "found": "fine", "status": "ok", "remedy": ""},
            {"subject": "b", "found": "bad", "status": "broken", "remedy": ""},
            {"subject": "c", "found": "meh", "status": "note", "remedy": ""},
        ],
    }


def test_it_runs_as_a_script_where_torchamp_is_missing(tmp_path: pathlib.Path) -> None:
    script = [sys.executable, "-I", "-S", doctor.__file__]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "    ok  copies of torch: 0",
        "BROKEN  torch: cannot be imported: No module named 'torch'",
        "        -> pip install torch",
        "BROKEN  torchamp: cannot be imported: No module named 'torchamp'",
        "        -> install torchamp again; in a checkout, make setup",
        "torchamp is not ready: torch, torchamp",
    ]


@pytest.mark.parametrize(
    "command", [["-m", "torchamp"], ["-m", "torchamp.apex"], [doctor.__file__]], ids=" ".join
)
def test_every_command_has_help(start_python, command: list) -> None:
    done = start_python(*command, "--help").wait()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_the_command_prints_json(start_python) -> None:
    done = start_python("-m", "torchamp", "doctor", "--json").wait()
    report = json.loads(done.stdout)
    assert report["status"] == ["ok", "note", "broken"][done.returncode]
    assert {"torch", "torchamp", "NVRTC"} <= {each["subject"] for each in report["findings"]}


def test_the_command_prints_the_version(new_python) -> None:
    assert new_python("-m", "torchamp", "--version") == f"torchamp {torchamp.__version__}\n"


def test_the_doctor_prints_the_installed_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: f"1.2 of {name}")
    with pytest.raises(SystemExit, match="0"):
        doctor.main(["--version"])
    assert capsys.readouterr().out == "torchamp 1.2 of torchamp\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = [sys.executable, "-m", "torchamp", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 1)  # 1: a tool could be better


def test_cmakedir_prints_one_folder(python) -> None:
    printed = python("-m", "torchamp", "--cmakedir")
    assert printed.strip().endswith("share/cmake")
    assert len(printed.splitlines()) == 1


def test_the_findings_are_the_library_s() -> None:
    python, copies, *findings = doctor.find()
    assert [each.subject for each in (python, copies)] == ["Python", "copies of torch"]
    assert findings == [Finding(*fields) for fields in _load._C.examine()]

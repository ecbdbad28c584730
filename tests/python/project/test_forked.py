"""What a program of the fixture `python` finds and how it ends is as in a new process."""

import re

import pytest

SEEN = """
import os, pickle, sys, __main__
class Here: pass
print(sys.argv, sys.path, os.getcwd(), os.environ["A_VARIABLE"])
print(__name__, __package__, globals().get("__file__"), __spec__ and __spec__.name)
print(__main__.Here is Here, type(pickle.loads(pickle.dumps(Here()))) is Here)
"""

BEGUN = """
import atexit, os, signal, sys, threading, time

def fail():
    raise KeyError("inner")

print("unflushed", end=" ")
atexit.register(print, "at exit")
thread = threading.Thread(target=lambda: time.sleep(0.2) or print("of a thread"))
"""

#: By what a program does at its end, its exit status.
ENDS = {
    "thread.start()": 0,
    "thread.start(); sys.exit()": 0,
    "thread.start(); sys.exit(7)": 7,
    "sys.exit(-1)": 255,
    "sys.exit('why')": 1,
    "os._exit(3)": 3,
    "fail()": 1,
    "raise KeyboardInterrupt": -2,
    "os.kill(os.getpid(), signal.SIGTERM)": -15,
}


@pytest.mark.parametrize(
    "first", [["-c", SEEN], ["folder/program.py"], ["-m", "folder.program"]], ids=lambda it: it[0]
)
def test_it_finds_the_same(python, new_python, tmp_path, first):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "program.py").write_text(SEEN)
    arguments = [*first, "-x", "--help", "-m"]
    found = python(*arguments, A_VARIABLE="its value")
    assert found == new_python(*arguments, A_VARIABLE="its value") and "its value" in found


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_the_same(python, new_python, tmp_path, end):
    (tmp_path / "program.py").write_text(BEGUN + end)
    printed = [run("program.py", expect=ENDS[end]) for run in (python, new_python)]
    assert printed[0] == printed[1]


def test_one_that_hangs_is_stopped_and_its_output_shown(start_python):
    started = start_python("-c", "import time; print('begun', flush=True); time.sleep(600)")
    with pytest.raises(AssertionError, match=re.escape("ran for 3 s:\nbegun")):
        started.wait(3)


def test_several_run_at_once(start_python):
    """Two programs wait for each other's file."""
    code = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch()\n"
    code += "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)"
    both = [start_python("-c", code, *names) for names in ("ab", "ba")]
    assert [one.wait().returncode for one in both] == [0, 0]

"""`python -m torchamp.apex`: the program sees the same environment as without it."""

import pathlib
import textwrap

import pytest

import torchamp

SEEN = """
    import sys, os, pickle
    from apex import amp
    import __main__
    class Here: pass
    print(sys.argv)
    print(__name__, __file__ == os.path.abspath(__file__), sys.path[0] == os.path.dirname(__file__))
    print(__main__.Here is Here, type(pickle.loads(pickle.dumps(Here()))) is Here)
    print(__annotations__ if "__annotations__" in globals() else "plain", __spec__)
"""


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return name

    return write


def test_a_script_sees_its_arguments_and_itself(python, write):
    script = write("folder/train.py", SEEN)
    said = python("-m", "torchamp.apex", script, "--opt-level", "O2", "-m", "--help")
    assert said.splitlines() == [
        "['folder/train.py', '--opt-level', 'O2', '-m', '--help']",
        "__main__ True True",
        "True True",
        "plain None",
    ]


def test_a_module_sees_its_arguments_and_its_package(python, write):
    write("pack/__init__.py", "")
    write("pack/other.py", "value = 5")
    write(
        "pack/train.py",
        """
        import sys
        from apex import amp
        from .other import value
        print(__name__, __package__, value, sys.argv[1:])
        """,
    )
    said = python("-m", "torchamp.apex", "-m", "pack.train", "-x", "--help")
    assert said.strip() == "__main__ pack 5 ['-x', '--help']"


@pytest.mark.parametrize(
    ("body", "status"),
    [("", 0), ("import sys; sys.exit(7)", 7), ("raise SystemExit", 0), ("1 / 0", 1)],
)
def test_the_exit_status_is_the_programs(python, write, body, status):
    said = python("-m", "torchamp.apex", write("train.py", body), expect=status)
    assert ("ZeroDivisionError" in said) == (status == 1)


def test_a_traceback_names_the_script_and_the_line(python, write):
    said = python("-m", "torchamp.apex", write("train.py", "\nraise KeyError(3)"), expect=1)
    assert "train.py" in said and "line 2" in said and "raise KeyError(3)" in said


def test_future_imports_of_the_runner_do_not_leak(python, write):
    script = write("train.py", "def f(x: undefined_name): pass")
    assert "undefined_name" in python("-m", "torchamp.apex", script, expect=1)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--help"], 0, "usage:"),
        ([], 2, "usage:"),
        (["missing.py"], 2, "cannot open 'missing.py'"),
        (["-m", "missing"], 2, "python -m torchamp.apex: no module named 'missing'\n"),
        (["-m", "missing.part"], 2, "python -m torchamp.apex: no module named 'missing.part'\n"),
        (["--opt-level", "O2"], 2, "unknown option --opt-level"),
        (["-m"], 2, "unknown option -m"),
    ],
)
def test_the_command_line_is_checked(python, arguments, status, message):
    assert message in python("-m", "torchamp.apex", *arguments, expect=status)


SPAWNS = """
    import multiprocessing
    from apex import amp
    def work(queue):
        queue.put(amp.scale_loss.__module__)
    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(queue.get(timeout=60))
        process.join()
        raise SystemExit(process.exitcode)
"""


@pytest.mark.parametrize(
    "method", ["spawn", pytest.param("forkserver", marks=pytest.mark.soak), "fork"]
)
def test_children_of_multiprocessing_are_aliased(python, write, method):
    said = python("-m", "torchamp.apex", write("train.py", SPAWNS.format(method=method)))
    assert said.startswith("torchamp.amp.")


def test_programs_that_the_program_starts_are_aliased(python, write):
    write("child.py", "import sys; print('apex' in sys.modules); import apex; print(apex)")
    script = write(
        "train.py", "import subprocess, sys; subprocess.run([sys.executable, 'child.py'])"
    )
    said = python("-m", "torchamp.apex", script).split(maxsplit=1)
    assert said[0] == "False" and "torchamp.compat.apex" in said[1]


@pytest.mark.soak
def test_a_sitecustomize_of_the_users_runs_in_children_too(new_python, write, tmp_path):
    write("site/sitecustomize.py", "print('mine')")
    script = write("train.py", "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])")
    path = f"{tmp_path}/site:{pathlib.Path(torchamp.__file__).parents[1]}"
    said = new_python("-m", "torchamp.apex", script, PYTHONPATH=path)
    assert said.split() == ["mine", "mine"]

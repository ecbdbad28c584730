"""Runs Python programs in processes forked by a server that has imported torch, which takes a new
process seconds.

A program finds what `python` gives it, and ends as there. What the interpreter does as it starts is
done: there are no flags, and its variables, such as PYTHONPATH, are the server's.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.machinery
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence

#: Of the server. Each process that it forks goes on here, in a `__main__` without names.
PROGRAM = "__import__('processes.forked', fromlist=['served']).served()()"


class Server:
    """The server, with variables of its environment."""

    def __init__(self, **environment: str) -> None:
        self._outputs = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=pathlib.Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},  # a fork has no others
            start_new_session=True,
        )

    def start(
        self, arguments: Sequence[str], folder: pathlib.Path, environment: Mapping[str, str]
    ) -> Started:
        """Starts `python *arguments` in a folder."""
        output = tempfile.mkdtemp(dir=self._outputs.name)
        self._ask("start", arguments, str(folder), dict(environment), output)
        return Started(self, self._answer(), arguments, pathlib.Path(output))

    def status(self, pid: int, seconds: float) -> int | None:
        """The exit status of a process when it ends. None if it had to be killed."""
        self._ask("wait", pid)
        ended = []
        try:
            ended, _, _ = select.select([self._process.stdout], [], [], seconds)
        finally:
            if not ended:
                os.killpg(pid, signal.SIGKILL)
        status = self._answer()
        return status if ended else None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
        self._outputs.cleanup()

    def _ask(self, *request: object) -> None:
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def _answer(self) -> int:
        return int(self._process.stdout.readline())


class Started:
    """A process that the server has forked."""

    def __init__(
        self, server: Server, pid: int, arguments: Sequence[str], output: pathlib.Path
    ) -> None:
        self._server, self._pid, self._arguments, self._output = server, pid, arguments, output

    def wait(self, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Asserts that it ends by then."""
        status = self._server.status(self._pid, seconds)
        out, err = ((self._output / name).read_text() for name in ("stdout", "stderr"))
        assert status is not None, f"{self._arguments} ran for {seconds} s:\n{out}{err}"
        return subprocess.CompletedProcess(self._arguments, status, out, err)


def output_of(done: subprocess.CompletedProcess[str], status: int = 0) -> str:
    """Of a process that has ended with this exit status."""
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


# In the server.


def served() -> Callable[[], object]:
    """Forks processes until the input ends. Returns in each of them, with what it is to call."""
    import torch._dynamo  # noqa: F401 - which optimizers import

    gc.freeze()  # a collection would copy it
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        command, *arguments = json.loads(line)
        if command == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(*arguments, 0)[1])
        elif (answer := os.fork()) == 0:
            requests.close()
            answers.close()
            return _begun(*arguments)
        print(answer, file=answers, flush=True)
    return sys.exit


# In a process that it has forked.


def _begun(
    arguments: list[str], folder: str, environment: dict[str, str], output: str
) -> Callable[[], object]:
    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    files = (os.devnull, "r"), (f"{output}/stdout", "w"), (f"{output}/stderr", "w")
    for descriptor, (file, mode) in enumerate(files):
        with open(file, mode) as opened:
            os.dup2(opened.fileno(), descriptor)
    sys.excepthook = _show_frames_of_the_program
    return functools.partial(_call, _program(*arguments))


def _program(first: str, *others: str) -> Callable[[], object]:
    if first == "-m":
        sys.path[0], sys.argv = os.getcwd(), [first, *others[1:]]
        return functools.partial(runpy._run_module_as_main, others[0])
    main = vars(sys.modules["__main__"])
    if first == "-c":
        sys.path[0], sys.argv = "", [first, *others[1:]]
        code = compile(others[0], "<string>", "exec", dont_inherit=True)
    else:
        path = os.path.abspath(first)
        sys.path[0], sys.argv = os.path.dirname(os.path.realpath(path)), [first, *others]
        main["__file__"] = path
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
        code = compile(pathlib.Path(path).read_bytes(), path, "exec", dont_inherit=True)
    return functools.partial(exec, code, main)


def _call(program: Callable[[], object]) -> None:
    """Ends the process, but for the modules' objects, of which torch has a million."""
    status = 0
    try:
        program()
    except SystemExit as end:
        if not isinstance(end.code, (int, type(None))):
            raise
        status = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


def _show_frames_of_the_program(kind, error, trace) -> None:
    """Those after PROGRAM and _call."""
    trace = trace.tb_next.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)

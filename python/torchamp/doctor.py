"""Reports what torchamp finds on this machine, what is missing, and how to fix it.

Runs as `torchamp-doctor`, as `python -m torchamp`, and as a plain script where torchamp itself
cannot be imported. Exit status: 0 if all is well, 1 if something works but could work better, 2 if
broken.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import pathlib
import sys
from typing import NamedTuple, Optional

STATUS_WORDS = ("ok", "note", "BROKEN")
VERDICTS = ("ready", "ready, and could work better: ", "not ready: ")


class Finding(NamedTuple):
    """One line of the report. `status` is 0 (fine), 1 (could work better) or 2 (broken)."""

    subject: str
    found: str
    status: int = 0
    remedy: str = ""


def check_import(name: str, remedy: str) -> Finding:
    """Whether this Python imports `name`, and from where."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return Finding(name, f"cannot be imported: {error}", 2, remedy)
    return Finding(name, f"{module.__version__} in {pathlib.Path(str(module.__file__)).parent}")


def check_torch_copies() -> Finding:
    """Every torch on sys.path: the first wins, and a second is how versions get mixed up."""
    folders = [pathlib.Path(entry or ".", "torch") for entry in sys.path]
    copies = sorted({str(f.resolve()) for f in folders if (f / "version.py").is_file()})
    if len(copies) <= 1:
        return Finding("copies of torch", str(len(copies)))
    return Finding(
        "copies of torch", ", ".join(copies), 1, "remove all but one: the first on sys.path is used"
    )


def find() -> list[Finding]:
    """The library's findings, or why Python cannot import it."""
    findings = [
        Finding("Python", f"{sys.version.split()[0]} in {sys.prefix}"),
        check_torch_copies(),
    ]
    own = check_import("torchamp", "install torchamp again; in a checkout, make setup")
    if own.status != 0:
        return [*findings, check_import("torch", "pip install torch"), own]
    from torchamp._load import _C

    return [*findings, *(Finding(*fields) for fields in _C.examine())]


def report(findings: list[Finding]) -> str:
    """Returns one line per finding, below it the remedy where there is one, and a verdict."""
    lines = []
    for finding in findings:
        lines.append(f"{STATUS_WORDS[finding.status]:>6}  {finding.subject}: {finding.found}")
        if finding.remedy:
            lines.append(f"{'':>6}  -> {finding.remedy}")
    worst = max(finding.status for finding in findings)
    reasons = [each.subject for each in findings if each.status == worst != 0]
    return "\n".join([*lines, f"torchamp is {VERDICTS[worst]}{', '.join(reasons)}"])


def report_json(findings: list[Finding]) -> str:
    """Returns the findings for programs: an object with the worst `status` and the `findings`, each
    with `subject`, `found`, `status` and `remedy`. A status is "ok", "note" or "broken"."""
    words = [word.lower() for word in STATUS_WORDS]
    worst = words[max(finding.status for finding in findings)]
    listed = [{**finding._asdict(), "status": words[finding.status]} for finding in findings]
    return json.dumps({"status": worst, "findings": listed}, indent=2)


def show(text: str) -> None:
    """Prints a text; nothing is wrong if its reader, such as `head`, leaves early."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def examine(as_json: bool) -> int:
    """Prints the report and returns the worst status in it."""
    findings = find()
    show(report_json(findings) if as_json else report(findings))
    return max(finding.status for finding in findings)


def _version() -> str:
    try:
        return importlib.metadata.version("torchamp")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def main(arguments: Optional[list[str]] = None) -> int:
    """Does what the command line asks for and returns the exit status."""
    parser = argparse.ArgumentParser(prog="torchamp-doctor", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["doctor"], help="of python -m torchamp")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--version", action="version", version=f"torchamp {_version()}")
    parser.add_argument(
        "--cmakedir", action="store_true", help="print the folder for CMAKE_PREFIX_PATH alone"
    )
    options = parser.parse_args(arguments)
    if options.cmakedir:
        show(str(pathlib.Path(__file__).parent / "share" / "cmake"))
        return 0
    return examine(options.json)


if __name__ == "__main__":
    # A script's folder comes first on sys.path, where torchamp's modules would be top-level ones.
    sys.path.pop(0)
    sys.exit(main())

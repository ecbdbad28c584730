"""Reports what torchamp finds on this machine, what is missing, and how to fix it.

Runs as `torchamp-doctor`, as `python -m torchamp`, and as a plain script where torchamp itself
cannot be imported. Exit status: 0 if all is well, 1 if something works but could work better, 2 if
broken.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Callable, NamedTuple, Optional

KERNELS = "TORCHAMP_KERNELS"
KERNELS_VALUES = ("auto", "aot", "nvrtc", "aten")
CMAKE_MINIMUM = (3, 18)
STATUS_WORDS = ("ok", "note", "BROKEN")


class Finding(NamedTuple):
    """One line of the report. `status` is 0 (fine), 1 (could work better) or 2 (broken)."""

    subject: str
    found: str
    status: int = 0
    remedy: str = ""


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.strip().splitlines() or ["does not run"])[0]


def _only_to_build(subject: str, found: str, remedy: str) -> Finding:
    """A finding about what an installed torchamp does without."""
    return Finding(subject, f"{found}; only building torchamp needs it: {remedy}")


def check_python() -> Finding:
    """Python, and its headers, which only building torchamp takes."""
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    if pathlib.Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return Finding("Python", found)
    return _only_to_build("Python", f"{found}, without Python.h", "apt-get install python3-dev")


def check_compiler() -> Finding:
    """The C++ compiler, which only building torchamp takes."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return _only_to_build("C++ compiler", "none", "apt-get install g++")
    return Finding("C++ compiler", _first_line(compiler, "--version"))


def check_cmake() -> Finding:
    """CMake, which only building torchamp takes."""
    cmake = shutil.which("cmake") or shutil.which(
        "cmake", path=str(pathlib.Path(sys.prefix, "bin"))
    )
    if cmake is None:
        return _only_to_build("CMake", "none", "pip install cmake")
    line = _first_line(cmake, "--version")
    version = re.search(r"(\d+)\.(\d+)", line)
    if version is None or (int(version[1]), int(version[2])) < CMAKE_MINIMUM:
        return _only_to_build("CMake", f"{line}, older than 3.18", "pip install cmake")
    return Finding("CMake", line)


def check_nvcc() -> Finding:
    """The CUDA compiler. Without it the kernels are compiled when they are first used."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        return Finding("nvcc", "none; NVRTC, which comes with torch, is used instead")
    version = subprocess.run(
        [nvcc, "--version"], capture_output=True, text=True, check=False
    ).stdout
    release = re.search(r"release [\d.]+", version)
    return Finding("nvcc", f"{release[0] if release else 'does not run'} in {nvcc}")


def check_torch() -> Finding:
    """The torch that this Python imports."""
    try:
        import torch
    except Exception as error:
        return Finding("torch", f"cannot be imported: {error}", 2, "pip install torch")
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return Finding(
        "torch", f"{torch.__version__} ({cuda}) in {pathlib.Path(torch.__file__).parent}"
    )


def check_torch_copies() -> Finding:
    """Every torch on sys.path: the first wins, and a second is how versions get mixed up."""
    folders = [pathlib.Path(entry or ".", "torch") for entry in sys.path]
    copies = sorted({str(f.resolve()) for f in folders if (f / "version.py").is_file()})
    if len(copies) <= 1:
        return Finding("copies of torch", str(len(copies)))
    return Finding(
        "copies of torch", ", ".join(copies), 1, "remove all but one: the first on sys.path is used"
    )


def check_gpu() -> Finding:
    """The GPUs that torch sees."""
    try:
        import torch
    except Exception:
        return Finding("GPU", "unknown without torch")
    if not torch.cuda.is_available():
        return Finding("GPU", "none that torch can use; torchamp works on the CPU")
    cards = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return Finding("GPU", ", ".join(f"{card.name} (sm_{card.major}{card.minor})" for card in cards))


def check_torchamp() -> Finding:
    """torchamp itself: whether it loads, and what it was built with."""
    try:
        import torchamp
    except Exception as error:
        return Finding(
            "torchamp",
            f"cannot be imported: {error}",
            2,
            "install torchamp again; in a checkout, make setup",
        )
    return Finding(
        "torchamp", f"{torchamp.__version__} in {pathlib.Path(torchamp.__file__).parent}"
    )


def check_build() -> Finding:
    """The build of torchamp."""
    try:
        from torchamp._load import _C

        info = _C.build_info()
    except Exception:
        return Finding("build", "unknown without torchamp")
    return Finding("build", ", ".join(f"{key}: {value}" for key, value in info.items()))


def check_backends() -> Finding:
    """Which kernels each device uses, and why not better ones."""
    try:
        from torchamp._load import backend, build_info

        backends = {name: backend(name) for name in build_info()["kernels"]}
    except Exception as error:
        return Finding("kernels", f"unavailable: {error}", 2)
    lines = [
        f"{device}: {name}{reason and f' ({reason})'}"
        for device, (name, reason) in backends.items()
    ]
    return Finding("kernels", "; ".join(lines), int(any(n == "aten" for n, _ in backends.values())))


#: Findings of the library that the checks above do not cover.
LIBRARY_SUBJECTS = ("C++ ABI", "processor", "CUDA driver", "NVRTC", "kernel cache")


def library_findings() -> list[Finding]:
    """The findings of the program torchamp-doctor; none if torchamp does not load."""
    try:
        from torchamp._load import _C
    except Exception:
        return []
    findings = [Finding(*fields) for fields in _C.examine()]
    return [finding for finding in findings if finding.subject in LIBRARY_SUBJECTS]


def check_tf32() -> Finding:
    """Whether matrix products of float32, as at O0, may round their inputs to TF32 on CUDA."""
    try:
        import torch

        precision = torch.get_float32_matmul_precision()
        if not torch.cuda.is_available():
            return Finding("TF32", f"not on this machine (float32_matmul_precision: {precision})")
        if torch.cuda.get_device_capability() < (8, 0):
            return Finding("TF32", "not supported by this GPU")
    except Exception as error:
        return Finding("TF32", f"unknown: {error}")
    if precision == "highest":
        remedy = (
            'torch.set_float32_matmul_precision("high") makes matrix products of float32 faster by '
            "rounding their inputs to 10 bits of mantissa"
        )
        return Finding("TF32", f"off for matrix products; {remedy}")
    return Finding("TF32", f"on for matrix products (float32_matmul_precision: {precision})")


def check_kernels_variable() -> Finding:
    """TORCHAMP_KERNELS, which forces one kind of kernels: auto (the best that works), aot (compiled
    by nvcc when torchamp was built), nvrtc (compiled when first used) or aten (torch's own ops)."""
    value = os.environ.get(KERNELS, "auto")
    if value in KERNELS_VALUES:
        return Finding(KERNELS, value)
    return Finding(KERNELS, value, 2, f"expected one of {', '.join(KERNELS_VALUES)}")


CHECKS: list[Callable[[], Finding]] = [
    check_python,
    check_compiler,
    check_cmake,
    check_nvcc,
    check_torch,
    check_torch_copies,
    check_gpu,
    check_tf32,
    check_kernels_variable,
    check_torchamp,
    check_build,
    check_backends,
]


def report(findings: list[Finding]) -> str:
    """Returns one line per finding, and below it the remedy where there is one."""
    lines = []
    for finding in findings:
        lines.append(f"{STATUS_WORDS[finding.status]:>6}  {finding.subject}: {finding.found}")
        if finding.remedy:
            lines.append(f"{'':>6}  -> {finding.remedy}")
    return "\n".join(lines)


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
    findings = [check() for check in CHECKS] + library_findings()
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
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--version", action="version", version=f"torchamp {_version()}")
    return examine(parser.parse_args(arguments).json)


if __name__ == "__main__":
    # A script's folder comes first on sys.path, where torchamp's modules would be top-level ones.
    sys.path.pop(0)
    sys.exit(main())

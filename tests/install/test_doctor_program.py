"""torchamp-doctor: a program of the installed package that reports problems and remedies."""

import pathlib
import re
import shutil
import subprocess

import pytest
import torch
from installed import run
from test_consumer import fake_torch

VERSION = re.escape(torch.__version__)


def doctor(root: pathlib.Path, *options: str, expect: int = 0, **environment: object) -> str:
    """Runs the program without Python on PATH and returns its output."""
    command = [root / "bin" / "torchamp-doctor", *options]
    settings = {name: str(value) for name, value in environment.items()}
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def status_of(report: str, subject: str) -> str:
    (line,) = re.findall(rf"^ *(\w+)  {re.escape(subject)}: ", report, re.MULTILINE)
    return line


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells more where there is a card")
def test_a_healthy_installation(prefix: pathlib.Path) -> None:
    report = doctor(prefix)
    assert re.search(rf"ok  torchamp: \d.* in {prefix}/.*built for torch {VERSION} by ", report)
    assert re.search(rf"ok  torch: {VERSION} \(with.* CUDA\) in ", report)
    assert re.search(r"ok  C\+\+ ABI: _GLIBCXX_USE_CXX11_ABI=[01]", report)
    assert re.search(r"ok  kernels on cpu: (avx2|neon|portable)\n", report)
    tools = ("CUDA driver", "NVRTC", "cuBLAS")
    for subject in ("processor", *tools, "kernel cache", "TORCHAMP_KERNELS"):
        assert status_of(report, subject) == "ok"
    assert re.search(r"processor: .*, \d+ threads; units for products of 16 bits: \w", report)
    assert report.splitlines()[-1] == "torchamp is ready"


@pytest.mark.soak
def test_the_wheel_has_it_and_it_finds_torch_beside(
    wheel_site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(wheel_site, site, symlinks=True)
    (site / "torch").symlink_to(pathlib.Path(torch.__file__).parent)
    assert f"in {site}/torchamp/" in doctor(site / "torchamp")


def test_a_torch_of_another_version_is_broken(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = fake_torch(tmp_path / "other_torch", version="2.1.0")
    report = doctor(prefix, expect=2, LD_LIBRARY_PATH=other / "lib")
    assert "BROKEN  torch: 2.1.0 (with" in report
    assert (
        f"but torchamp was built for {torch.__version__}\n        -> build torchamp again" in report
    )


def test_kernels_that_cannot_be_had_are_broken(prefix: pathlib.Path) -> None:
    report = doctor(prefix, expect=2, TORCHAMP_KERNELS="cutlass")
    assert "BROKEN  kernels on cpu: unavailable: TORCHAMP_KERNELS: expected auto, aot" in report
    assert "        -> TORCHAMP_KERNELS=auto selects the best available" in report
    assert report.splitlines()[-1] == "torchamp is not ready: kernels on cpu"


def test_why_nvrtc_is_not_there(prefix: pathlib.Path) -> None:
    report = doctor(prefix, TORCHAMP_NVRTC="/nowhere/libnvrtc.so")
    assert re.search(r"NVRTC: none: .*/nowhere/libnvrtc.so: cannot open", report)


#: A libnvrtc that names twelve architectures; compiling gives COMPILED.
NVRTC = """
static const int archs[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
static const char log[] = "cannot open libnvrtc-builtins.so.13.0";
int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int* count) { *count = 12; return 0; }
int nvrtcGetSupportedArchs(int* to) { for (int i = 0; i < 12; ++i) to[i] = archs[i]; return 0; }
int nvrtcCreateProgram(void) { return 0; }
int nvrtcDestroyProgram(void) { return 0; }
int nvrtcCompileProgram(void) { return COMPILED; }
int nvrtcGetProgramLogSize(void* program, unsigned long* size) { *size = sizeof log; return 0; }
int nvrtcGetProgramLog(void* p, char* to) { __builtin_memcpy(to, log, sizeof log); return 0; }
int nvrtcGetCUBINSize(void* program, unsigned long* size) { *size = 0; return 0; }
int nvrtcGetCUBIN(void) { return 0; }
int nvrtcGetPTXSize(void* program, unsigned long* size) { *size = 0; return 0; }
int nvrtcGetPTX(void) { return 0; }
"""


def fake_nvrtc(folder: pathlib.Path, compiled: int) -> pathlib.Path:
    (folder / "nvrtc.c").write_text(NVRTC)
    library = folder / "libnvrtc.so.13"
    run("cc", "-shared", "-fPIC", f"-DCOMPILED={compiled}", "-o", library, folder / "nvrtc.c")
    return library


def test_a_healthy_nvrtc_names_its_architectures(
    prefix: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    library = fake_nvrtc(tmp_path, compiled=0)
    assert (f"    ok  NVRTC: 13.0 in {library}, compiles for sm_75 to sm_121\n") in doctor(
        prefix, TORCHAMP_NVRTC=library
    )


def test_an_nvrtc_that_cannot_compile_has_a_remedy(
    prefix: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    library = fake_nvrtc(tmp_path, compiled=6)
    why = "which does not compile: cannot open libnvrtc-builtins.so.13.0"
    assert (
        f"  note  NVRTC: 13.0 in {library}, {why}\n        -> install NVRTC again, or point"
    ) in doctor(prefix, expect=1, TORCHAMP_NVRTC=library)


def fake_cublas(folder: pathlib.Path, function: str) -> pathlib.Path:
    """Answers 13, 4 and 1 for the parts of its version."""
    (folder / "cublas.c").write_text(
        f"int {function}(int part, int* to) {{ *to = (int[]){{13, 4, 1}}[part]; return 0; }}"
    )
    library = folder / "libcublas.so.99"
    run("cc", "-shared", "-fPIC", "-o", library, folder / "cublas.c")
    return library


def test_the_version_of_cublas(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    library = fake_cublas(tmp_path, "cublasGetProperty")
    assert f"    ok  cuBLAS: 13.4.1 in {library}\n" in doctor(prefix, LD_PRELOAD=library)


def test_a_cublas_without_a_version(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    library = fake_cublas(tmp_path, "cublasGetNothing")
    reason = f"of unknown version: {library} has no function cublasGetProperty"
    assert f"    ok  cuBLAS: {reason}\n" in doctor(prefix, LD_PRELOAD=library)


def test_the_programs_options(prefix: pathlib.Path) -> None:
    program = prefix / "bin" / "torchamp-doctor"
    assert run(program, "--help").startswith("usage: torchamp-doctor ")
    done = subprocess.run([program, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "torchamp-doctor: expected --help or nothing, got --json\n"


def test_forced_aten_is_reported(prefix: pathlib.Path) -> None:
    report = doctor(prefix, expect=1, TORCHAMP_KERNELS="aten")
    assert "note  kernels on cpu: aten (TORCHAMP_KERNELS is aten)" in report
    verdict = report.splitlines()[-1]
    assert verdict == "torchamp is ready, and could work better: kernels on cpu"

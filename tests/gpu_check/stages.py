"""The stages of `make gpu-check`, in order, with time limits for 16 cores."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from runner import Stage

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

#: With their time limits. Training iterations have their own limit, slightly lower.
BENCHMARKS = {"bench_step": 100, "bench_training": 120, "bench_ops": 50, "bench_variants": 50}
OPTIONS = {"bench_step": ["--repeats", "5"], "bench_training": ["--limit", "105"]}
OPS_TESTS = ("tests/python/ops/test_ops.py", "tests/python/ops/test_ops_random.py")
#: For each of the parallel tests.
FEW_THREADS = {"OMP_NUM_THREADS": "2"}
CPP_ON_CARD = {"GTEST_FILTER": "*cuda*:*Cuda*", **FEW_THREADS}


@dataclass(frozen=True)
class Setting:
    """Settings. `build`: the build tree. `out`: the folder for results. `device`: cuda or cpu.
    `arch`: the card's architecture, as in sm_90. `gtest`: GoogleTest's sources, or None to let
    CMake find them."""

    build: Path
    out: Path
    device: str
    arch: str
    gtest: str | None
    jobs: int

    @property
    def cache(self) -> Path:
        """The cache folder for kernels compiled by NVRTC."""
        return self.build / "kernel_cache"

    def rows_of(self, benchmark: str) -> Path:
        """The result file of a benchmark."""
        return self.out / f"{benchmark}.json"

    def environment(self) -> dict[str, str]:
        """The environment of every stage."""
        paths = [str(self.build / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "TORCHAMP_BUILD_DIR": str(self.build),
            "TORCHAMP_CACHE": str(self.cache),
        }


def stages(setting: Setting) -> list[Stage]:
    return [
        *build(setting),
        *smoke(setting),
        *python_tests(setting),
        *benchmarks(setting),
        *captured_example(setting),
        *kernel_tests(setting),
        *sanitizers(setting),
        *other_cpp_tests(setting),
    ]


def configure(setting: Setting, *options: str) -> list[object]:
    """CMake's command. With many cores, compiling files separately is faster, and so is Ninja,
    which compiles the module without waiting for the library."""
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    unity = "ON" if setting.jobs < 8 else "OFF"
    return [
        "cmake", "-S", ROOT, "-B", setting.build, *ninja, "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython3_EXECUTABLE={sys.executable}", f"-DTORCHAMP_CUDA_ARCHS={setting.arch}",
        f"-DTORCHAMP_UNITY_BUILD={unity}", *options,
    ]  # fmt: skip


def make(setting: Setting, *targets: str) -> list[object]:
    return ["cmake", "--build", setting.build, "--parallel", setting.jobs, "--target", *targets]


def build(setting: Setting) -> list[Stage]:
    """The library and the Python module. The C++ tests, which may not build, come later."""
    without = configure(setting, "-DTORCHAMP_BUILD_TESTS=OFF", "-DTORCHAMP_BUILD_EXAMPLES=OFF")
    return [
        Stage("configure", without, 40, builds=True),
        Stage(
            "build",
            make(setting, "torchamp", "torchamp_python"),
            200,
            needs=("configure",),
            builds=True,
        ),
    ]


def smoke(setting: Setting) -> list[Stage]:
    """A step on each backend. NVRTC's second start uses the kernels cached by the first."""
    command = [sys.executable, HERE / "smoke.py", setting.device]
    names = {"aot": "aot", "nvrtc": "nvrtc", "nvrtc again": "nvrtc", "aten": "aten"}
    return [
        Stage(
            f"smoke {name}",
            command,
            30,
            needs=("build",),
            absent="torchamp was built without nvcc",
            environment={"TORCHAMP_KERNELS": backend},
        )
        for name, backend in names.items()
    ]


def benchmarks(setting: Setting) -> list[Stage]:
    """The measurements, and then a comparison with the cost model."""
    folder = ROOT / "benchmarks" / "python"
    measured = [
        Stage(
            name,
            [
                sys.executable, folder / f"{name}.py",
                "--device", setting.device, "--json", setting.rows_of(name), *OPTIONS.get(name, []),
            ],
            limit,
            needs=("build",),
            absent=f"{name}: not run",
        )
        for name, limit in BENCHMARKS.items()
    ]  # fmt: skip
    compared = ("bench_step", "bench_ops")
    files = [setting.rows_of(name) for name in compared]
    roofline = [sys.executable, folder / "roofline.py", *files]
    return [*measured, Stage("roofline", roofline, 15, needs=compared)]


def pytest(setting: Setting, *tests: str) -> list[object]:
    workers = ["-n", min(8, setting.jobs)] if importlib.util.find_spec("xdist") else []
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "--durations=5", *workers]
    return [sys.executable, "-m", "pytest", *options, "-m", "card", *tests]


def python_tests(setting: Setting) -> list[Stage]:
    every = pytest(setting, "tests/gpu", "tests/python")
    some = pytest(setting, "tests/gpu", *OPS_TESTS)
    on_backends = [
        Stage(
            f"GPU tests on {backend}",
            some,
            50,
            needs=(f"smoke {backend}",),
            environment={"TORCHAMP_KERNELS": backend, **FEW_THREADS},
        )
        for backend in ("nvrtc", "aten")
    ]
    return [Stage("GPU tests", every, 150, needs=("build",), environment=FEW_THREADS), *on_backends]


def captured_example(setting: Setting) -> list[Stage]:
    """A training iteration of a C++ program as a graph."""
    options = ["-DTORCHAMP_BUILD_TESTS=OFF", "-DTORCHAMP_BUILD_EXAMPLES=ON"]
    example = setting.build / "examples" / "cpp" / "cuda_graph" / "cuda_graph"
    names = ["example: configure", "example: build", "example"]
    return [
        Stage(names[0], configure(setting, *options), 20, needs=("build",), builds=True),
        Stage(names[1], make(setting, "cuda_graph"), 40, needs=(names[0],), builds=True),
        Stage(names[2], [example], 20, needs=(names[1],), absent="NOTHING WAS RUN"),
    ]


def cpp_names(of_kernels: bool) -> list[str]:
    """The C++ tests of the kernels, or the others: CMake targets and CTest tests."""
    stems = sorted(path.stem for path in (ROOT / "tests" / "cpp").rglob("test_*.cpp"))
    return [stem for stem in stems if of_kernels == bool(re.match("test_(ops|fused)", stem))]


def ctest(setting: Setting, names: list[str]) -> list[object]:
    run = ["cmake", "-E", "chdir", setting.build, "ctest", "--output-on-failure"]
    return [*run, "-j", setting.jobs, "-R", f"^({'|'.join(names)})(_aten)?$"]


def kernel_tests(setting: Setting) -> list[Stage]:
    """The C++ tests of the kernels' results."""
    options = ["-DTORCHAMP_BUILD_TESTS=ON", "-DTORCHAMP_BUILD_EXAMPLES=OFF"]
    options += [f"-DTORCHAMP_GTEST_SOURCE_DIR={setting.gtest}"] * bool(setting.gtest)
    setup = configure(setting, *options)
    names = cpp_names(of_kernels=True)
    run = ctest(setting, names)
    set_up, built = "C++ tests: configure", "C++ kernel tests: build"
    on_nvrtc, needs = {**CPP_ON_CARD, "TORCHAMP_KERNELS": "nvrtc"}, (built, "smoke nvrtc")
    return [
        Stage(set_up, setup, 30, needs=("build",), absent="need GoogleTest", builds=True),
        Stage(built, make(setting, *names), 100, needs=(set_up,), builds=True),
        Stage("C++ kernel tests", run, 40, needs=(built,), environment=CPP_ON_CARD),
        Stage("C++ kernel tests on nvrtc", run, 40, needs=needs, environment=on_nvrtc),
    ]


def other_cpp_tests(setting: Setting) -> list[Stage]:
    """The other C++ tests. They build slowly, and the Python tests cover most of them."""
    built, names = "other C++ tests: build", cpp_names(of_kernels=False)
    run = ctest(setting, names)
    return [
        Stage(built, make(setting, *names), 130, needs=("C++ tests: configure",), builds=True),
        Stage("other C++ tests", run, 40, needs=(built,), environment=CPP_ON_CARD),
    ]


def sanitizers(setting: Setting) -> list[Stage]:
    """initcheck must also track torch's kernels, which write what ours read."""
    program = "compute-sanitizer"
    ours = ["--kernel-name", "kernel_substring=torchamp_"]
    only = {"memcheck": ours, "initcheck": [], "racecheck": ours}
    return [
        Stage(
            tool,
            [
                program, "--tool", tool, "--error-exitcode", "1", *options,
                sys.executable, HERE / "sanitized.py", setting.device,
            ],
            45,
            needs=("build",),
            program=program,
            absent="Device not supported",
            environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
        for tool, options in only.items()
    ]  # fmt: skip

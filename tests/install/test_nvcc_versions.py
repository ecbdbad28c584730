"""Every nvcc from 12.1 on compiles the kernels for the architectures that it knows; without nvcc
there is NVRTC. The compilers are scripts that answer like nvcc and record their calls."""

import pathlib
import re
import subprocess

import pytest

SOURCE = pathlib.Path(__file__).parent / "kernels"

NVCC = """#!/bin/sh
case $1 in
  --version) echo "Cuda compilation tools, release {release}, V{version}" ;;
  --list-gpu-arch) for arch in {archs}; do echo compute_$arch; done ;;
  --help) echo "{options}" ;;
  *) echo "$@" > {record}
     while [ "$1" != -o ]; do shift; done
     echo fatbin > "$2" ;;
esac
"""

ARCHS_12 = "50 52 53 60 61 62 70 72 75 80 86 87 89 90"
ARCHS_12_9 = f"{ARCHS_12} 100 101 103 120 121"
ARCHS_13 = "75 80 86 87 88 89 90 100 110 103 120 121"


def make_nvcc(
    folder: pathlib.Path, version: str, archs: str = ARCHS_13, options: str = ""
) -> pathlib.Path:
    nvcc = folder / "nvcc"
    release = ".".join(version.split(".")[:2])
    record = folder / "called_with"
    nvcc.write_text(
        NVCC.format(release=release, version=version, archs=archs, options=options, record=record)
    )
    nvcc.chmod(0o755)
    return nvcc


def configure(build: pathlib.Path, *options: str, ok: bool = True) -> str:
    """Configures the project and returns CMake's output, with unwrapped lines."""
    command = ["cmake", "-S", SOURCE, "-B", build, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return re.sub(r"\s*\n\s+", " ", done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("version", "archs", "expected"),
    [
        ("12.4.131", ARCHS_12, ["70", "80", "90"]),
        pytest.param("12.1.66", ARCHS_12, ["70", "80", "90"], marks=pytest.mark.soak),
        ("12.9.86", ARCHS_12_9, ["70", "80", "90", "100", "120"]),
        ("13.0.88", ARCHS_13, ["75", "80", "90", "100", "110", "120"]),
    ],
)
def test_each_generation_is_compiled_once(
    tmp_path: pathlib.Path, version: str, archs: str, expected: list
) -> None:
    nvcc = make_nvcc(tmp_path, version, archs)
    options = [f"-DTORCHAMP_NVCC={nvcc}", "-DTORCHAMP_CUDA_ARCHS=generations"]
    printed = configure(tmp_path / "build", *options)
    assert f"architectures: {';'.join(expected)}; nvcc: {version}" in printed
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    called_with = (tmp_path / "called_with").read_text().split()
    wanted = [option for option in called_with if option.startswith("-gencode=")]
    assert wanted == [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in expected]
    assert {"-fatbin", "-fmad=false", "-std=c++17"} <= set(called_with)
    assert "--compress-mode=size" not in called_with


@pytest.mark.parametrize(
    ("cards", "expected"),
    [(["9.0", "9.0"], "90"), (["8.9", "7.5"], "75;89"), (["6.1"], "80;90"), ([], "80;90")],
)
def test_this_machines_cards_are_compiled_for(
    tmp_path: pathlib.Path, cards: list, expected: str
) -> None:
    nvcc = make_nvcc(tmp_path, "13.0.88")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\n" + "".join(f"echo {card}\n" for card in cards))
    smi.chmod(0o755)
    options = [f"-DTORCHAMP_NVCC={nvcc}", f"-DTORCHAMP_NVIDIA_SMI={smi}"]
    assert f"architectures: {expected}; nvcc" in configure(tmp_path / "build", *options)


def test_what_is_new_is_used_where_it_is_there(tmp_path: pathlib.Path) -> None:
    nvcc = make_nvcc(tmp_path, "13.0.88", options="--compress-mode {default|size}")
    configure(tmp_path / "build", f"-DTORCHAMP_NVCC={nvcc}")
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    assert "--compress-mode=size" in (tmp_path / "called_with").read_text()


def test_an_older_nvcc_is_left_alone(tmp_path: pathlib.Path) -> None:
    nvcc = make_nvcc(tmp_path, "12.0.140", ARCHS_12)
    printed = configure(tmp_path / "build", f"-DTORCHAMP_NVCC={nvcc}")
    why = f"{nvcc} is 12.0.140, the kernels need 12.1"
    assert f"torchamp: no fatbin ({why}); the CUDA kernels are compiled by NVRTC" in printed
    assert f"architectures: ; nvcc: absent: {why}" in printed
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    assert not (tmp_path / "called_with").exists()


def test_an_nvcc_that_compiles_nothing_is_left_alone(tmp_path: pathlib.Path) -> None:
    nvcc = make_nvcc(tmp_path, "12.4.131", ARCHS_12)
    text = nvcc.read_text().replace("  *)", "  *) echo 'fatal: no \"g++\";' >&2; exit 1")
    nvcc.write_text(text)
    printed = configure(tmp_path / "build", f"-DTORCHAMP_NVCC={nvcc}")
    assert f"torchamp: no fatbin ({nvcc} fails: fatal: no 'g++''); the CUDA kernels" in printed


def test_an_older_nvcc_is_refused_where_one_is_demanded(tmp_path: pathlib.Path) -> None:
    nvcc = make_nvcc(tmp_path, "11.8.89", ARCHS_12)
    options = [f"-DTORCHAMP_NVCC={nvcc}", "-DTORCHAMP_USE_CUDA=ON"]
    printed = configure(tmp_path / "build", *options, ok=False)
    assert f"{nvcc} is 11.8.89, the kernels need 12.1" in printed


def test_chosen_architectures_are_taken_as_they_are(tmp_path: pathlib.Path) -> None:
    nvcc = make_nvcc(tmp_path, "13.0.88")
    options = [f"-DTORCHAMP_NVCC={nvcc}", "-DTORCHAMP_CUDA_ARCHS=90;86"]
    assert "architectures: 86;90; nvcc" in configure(tmp_path / "build", *options)


@pytest.mark.parametrize("arch", ["60", "sm_90", "hopper"])
def test_architectures_that_cannot_be_are_named(tmp_path: pathlib.Path, arch: str) -> None:
    nvcc = make_nvcc(tmp_path, "12.4.131", ARCHS_12)
    options = [f"-DTORCHAMP_NVCC={nvcc}", f"-DTORCHAMP_CUDA_ARCHS={arch}"]
    printed = configure(tmp_path / "build", *options, ok=False)
    assert (
        "TORCHAMP_CUDA_ARCHS: expected architectures from 70 on, as 80;90, or generations, "
        f"got {arch}" in printed
    )

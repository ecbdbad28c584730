"""amp.save replaces a file at once, or leaves everything as it was."""

import contextlib
import os
import resource
import stat
import sys

import pytest
import torch
from nets import initialized, train_step

from torchamp import amp


@pytest.mark.parametrize("kills", [20, pytest.param(250, marks=pytest.mark.soak)])
def test_a_killed_save_leaves_the_file_whole(new_python, tmp_path, kills):
    program = ("-m", "processes.killed_saves", str(tmp_path / "run.pt"), str(kills))
    output = new_python(*program, PYTHONPATH=os.pathsep.join(sys.path))
    loaded = [int(line) for line in output.split()]
    assert len(loaded) == kills and len(set(loaded)) > 1


@contextlib.contextmanager
def files_limited_to(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("share", [0, 0.3, 0.95])
def test_a_failed_save_leaves_nothing_behind(tmp_path, share):
    """There is room for a share of the file."""
    path = tmp_path / "run.pt"
    amp.save(*initialized("O2"), path)
    before = path.read_bytes()
    with files_limited_to(int(share * len(before))), pytest.raises((RuntimeError, OSError)):
        amp.save(*initialized("O2"), path)
    assert os.listdir(tmp_path) == ["run.pt"] and path.read_bytes() == before


def test_a_full_disk_is_reported_where_torchs_own_file_is_silent(tmp_path, monkeypatch):
    """As that of torch 2.8 and 2.9 is."""
    save = torch.save

    def silent_save(state, file):
        is_torchs = isinstance(file, (str, os.PathLike))
        with contextlib.suppress(RuntimeError, OSError) if is_torchs else contextlib.nullcontext():
            save(state, file)

    monkeypatch.setattr(torch, "save", silent_save)
    test_a_failed_save_leaves_nothing_behind(tmp_path, 0.5)


def test_permissions_are_kept(tmp_path):
    path = tmp_path / "run.pt"
    amp.save(*initialized("O2"), path)
    path.chmod(0o640)
    amp.save(*initialized("O2"), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_nobody_else_may_read_the_new_file_at_any_time(tmp_path, monkeypatch, mode):
    path = tmp_path / "run.pt"
    amp.save(*initialized("O2"), path)
    path.chmod(mode)
    save, modes = torch.save, []

    def watched(state, file):
        modes.append(stat.S_IMODE(os.stat(file.name).st_mode))
        save(state, file)

    monkeypatch.setattr(torch, "save", watched)
    amp.save(*initialized("O2"), path)
    assert modes == [mode | 0o600] and stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "other").touch()
    amp.save(*initialized("O2"), tmp_path / "run.pt")
    assert (tmp_path / "run.pt").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_is_followed(tmp_path):
    amp.save(*initialized("O2"), tmp_path / "run.pt")
    (tmp_path / "latest").symlink_to("run.pt")
    model, optimizer = initialized("O2")
    train_step(model, optimizer)
    amp.save(model, optimizer, tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    amp.load(*initialized("O2"), tmp_path / "run.pt")


def test_a_file_that_a_killed_process_left(tmp_path):
    left = tmp_path / f"run.pt.tmp-{os.getpid()}"
    left.touch()
    amp.save(*initialized("O2"), tmp_path / "run.pt")
    assert sorted(os.listdir(tmp_path)) == ["run.pt", left.name]


def test_what_is_no_file_is_written_directly():
    amp.save(*initialized("O2"), os.devnull)
    assert not os.path.isfile(os.devnull)

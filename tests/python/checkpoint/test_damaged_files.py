"""Files that are damaged are refused and change nothing, or load as what was saved."""

import io
import itertools
import random

import pytest
import torch
from nets import adam, changed, everything, initialized, train_step

from torchamp import amp


def trained(seed: int):
    pair = initialized("O2", torch.nn.Linear(4, 3), adam)
    train_step(*pair, seed)
    return pair


def saved_bytes(model, optimizer) -> bytes:
    file = io.BytesIO()
    amp.save(model, optimizer, file)
    return file.getvalue()


def numbers_of(model, optimizer) -> list:
    """The state that is no tensor of `everything`."""
    return [optimizer.state_dict()["param_groups"], amp.state_dict()]


class Sample:
    """A file, what it holds, and a run that loads damaged copies of it."""

    def __init__(self) -> None:
        original = trained(1)
        self.bytes = saved_bytes(*original)
        self.saved = everything(*original), numbers_of(*original)
        self.here = trained(2)
        self.bytes_here = saved_bytes(*self.here)
        self.before = everything(*self.here), numbers_of(*self.here)

    def check(self, damaged: bytes, where: object) -> None:
        try:
            amp.load(*self.here, io.BytesIO(damaged))
        except RuntimeError as error:
            assert str(error).startswith("amp.load: expected "), where
            self.assert_holds(self.before, where)
        else:
            self.assert_holds(self.saved, where)
            amp.load(*self.here, io.BytesIO(self.bytes_here))

    def assert_holds(self, state: tuple, where: object) -> None:
        tensors, numbers = state
        assert changed(tensors, everything(*self.here)) == set(), where
        assert numbers_of(*self.here) == numbers, where


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_flipped_bits(count):
    sample = Sample()
    bits = random.Random(0).sample(range(8 * len(sample.bytes)), count)
    for bit in bits:
        flipped = bytearray(sample.bytes)
        flipped[bit // 8] ^= 1 << bit % 8
        sample.check(bytes(flipped), bit)


@pytest.mark.parametrize("stride", [37, pytest.param(1, marks=pytest.mark.soak)])
def test_truncations(stride):
    sample = Sample()
    for length in range(0, len(sample.bytes), stride):
        sample.check(sample.bytes[:length], length)


def test_a_changed_value_is_named():
    """torch.load reads such a file as if nothing had happened."""
    sample = Sample()
    weight = sample.saved[0]["master.0"].numpy().tobytes()
    damaged = sample.bytes.replace(weight, weight[:-1] + bytes([weight[-1] ^ 1]))
    with pytest.raises(RuntimeError, match="record 'archive/data/0' is damaged: the checksum"):
        amp.load(*sample.here, io.BytesIO(damaged))


def test_files_without_checksums():
    """torch can write them, and old files may be such."""
    original = trained(1)
    torch.serialization.set_crc32_options(False)
    try:
        file = io.BytesIO(saved_bytes(*original))
    finally:
        torch.serialization.set_crc32_options(True)
    here = trained(2)
    amp.load(*here, file)
    assert changed(everything(*original), everything(*here)) == set()


def test_several_files_in_a_row_of_one_object(tmp_path):
    """As torch.load, amp.load starts where the file is and needs no rewind after a failure."""
    original, here = trained(1), trained(2)
    file = io.BytesIO(saved_bytes(*original))
    for _ in itertools.repeat(None, 2):
        file.seek(0)
        amp.load(*here, file)
    assert changed(everything(*original), everything(*here)) == set()

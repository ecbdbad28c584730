"""Inputs and outputs of forward: which values are cast, and to what."""

import collections
import dataclasses
import types
import typing

import numpy
import pytest
import torch

from torchamp.amp._model import convert

F16 = torch.float16
X = torch.ones(2)
N = torch.arange(2)

Pair = collections.namedtuple("Pair", ["a", "b"])


class Typed(typing.NamedTuple):
    a: torch.Tensor
    n: int = 3


class Listing(list):
    pass


class Batch:
    """A user's class with a `to` method."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, dtype: torch.dtype) -> "Batch":
        return Batch(self.tensor.to(dtype))


@dataclasses.dataclass
class Record:
    tensor: torch.Tensor


def test_tensors():
    assert convert(X, F16).dtype == F16
    assert convert(X.double(), F16).dtype == F16
    assert convert(N, F16) is N
    assert convert(X.bool(), F16).dtype == torch.bool
    assert convert(X.to(torch.complex64), F16).dtype == torch.complex64


@pytest.mark.parametrize(
    "value",
    [
        "text",
        b"bytes",
        None,
        7,
        1.5,
        numpy.ones(2),
        range(3),
        torch.nn.Linear(1, 1),
        torch.Tensor,
        Record(X),
        [1, "a", None],
        {"n": N},
        torch.Size([2, 3]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_left_alone(value):
    assert convert(value, F16) is value


@pytest.mark.parametrize("kind", [list, tuple, Listing, collections.deque])
def test_sequences_keep_their_type(kind):
    result = convert(kind([X, N, "a"]), F16)
    assert type(result) is kind
    assert [getattr(v, "dtype", v) for v in result] == [F16, torch.int64, "a"]


@pytest.mark.parametrize("value", [Pair(X, N), Typed(X), torch.return_types.max((X, N))])
def test_named_tuples_keep_their_type(value):
    result = convert(value, F16)
    assert type(result) is type(value)
    assert result[0].dtype == F16 and (result[1] is value[1])


def test_sets():
    assert {t.dtype for t in convert({X}, F16)} == {F16}


@pytest.mark.parametrize(
    "mapping",
    [
        {"x": X},
        collections.OrderedDict(x=X),
        collections.defaultdict(list, x=X),
        collections.UserDict(x=X),
    ],
    ids=lambda value: type(value).__name__,
)
def test_mappings_keep_type_and_keys(mapping):
    result = convert(mapping, F16)
    assert type(result) is type(mapping) and list(result) == ["x"]
    assert result["x"].dtype == F16 and mapping["x"].dtype == torch.float32
    if isinstance(mapping, collections.defaultdict):
        assert result["missing"] == []


def test_mapping_keys_are_not_cast():
    assert next(iter(convert({X: X}, F16))) is X


def test_an_immutable_mapping_is_replaced_by_a_new_one():
    result = convert(types.MappingProxyType({"x": X}), F16)
    assert isinstance(result, types.MappingProxyType) and result["x"].dtype == F16


def test_iterators_stay_lazy():
    seen = []

    def numbers():
        for tensor in (X, N):
            seen.append(tensor)
            yield tensor

    result = convert(numbers(), F16)
    assert not seen
    assert [t.dtype for t in result] == [F16, torch.int64]
    assert [t.dtype for t in convert(map(torch.neg, [X]), F16)] == [F16]


def test_objects_that_know_how():
    assert convert(Batch(X), F16).tensor.dtype == F16
    packed = torch.nn.utils.rnn.pack_sequence([X, X[:1]])
    result = convert(packed, F16)
    assert type(result) is type(packed) and result.data.dtype == F16


def test_nested():
    result = convert({"a": [X, (N, {"b": X})]}, F16)
    assert result["a"][0].dtype == F16 and result["a"][1][1]["b"].dtype == F16
    assert result["a"][1][0] is N

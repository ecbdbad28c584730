"""Inputs and outputs of forward: which values are cast, and to what."""

import collections
import dataclasses
import types
import typing

import numpy
import pytest
import torch

from torchamp.amp._model.conversion import convert

F16 = torch.float16
X = torch.ones(2)
N = torch.arange(2)

Pair = collections.namedtuple("Pair", ["a", "b"])


class Typed(typing.NamedTuple):
    a: torch.Tensor
    n: int = 3


class Listing(list):
    pass


class Movable:
    """The method that makes an object a batch; convert does not call it."""

    __slots__ = ()

    def to(self, device):
        raise AssertionError


class Batch(Movable):
    def __init__(self, x, more=None):
        self.x, self.more = x, more


class Slotted(Movable):
    __slots__ = ("x", "__hidden", "unset")

    def __init__(self, x):
        self.x = self.__hidden = x

    def hidden(self):
        return self.__hidden


class OneSlot(Movable):
    __slots__ = "tensor"


class Both(Slotted):
    """Slots, and attributes in __dict__."""


class Delegating(Movable):
    """Fails in copy.copy, which asks an object without attributes for one."""

    def __init__(self, x):
        self.content = {"x": x}

    def __getattr__(self, name):
        return self.content[name]


class Described(Movable):
    """As PyG's storages: a property over an attribute of its name."""

    def __init__(self, x):
        self.__dict__["x"] = x
        self.__dict__["shape"] = (2,)

    @property
    def shape(self):
        raise AssertionError

    @property
    def x(self):
        return self.__dict__["x"]


class Encoding(collections.UserDict):
    """As transformers' BatchEncoding: attributes beside its items."""

    def __init__(self, data, name=None):
        super().__init__(data)
        self.name = name

    def to(self, device):
        return self


class Quantity(numpy.ndarray):
    """As astropy's: an array with a unit."""

    to = Movable.to


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    n: int = 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor


class Namespace(types.SimpleNamespace):
    def __init__(self, x):
        super().__init__(x=x)


class Sealed(Movable):
    """As attrs.frozen makes it."""

    __slots__ = ("x",)

    def __init__(self, x):
        object.__setattr__(self, "x", x)

    def __setattr__(self, name, value):
        raise AttributeError


class Output(collections.OrderedDict):
    """As transformers' ModelOutput: a dataclass whose fields are items too."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            super().__setitem__(field.name, getattr(self, field.name))

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self):
        return type(self), tuple(self.values())


@dataclasses.dataclass
class Scores(Output):
    logits: torch.Tensor
    count: int = 2


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
        Record(N),
        Batch(N, more=[Record(N)]),
        types.SimpleNamespace(n=N),
        Slotted(N),
        numpy.ones(2).view(Quantity),
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
        types.MappingProxyType({"x": X}),
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


@pytest.mark.parametrize(
    "kind", [Batch, Slotted, Both, Delegating, Described, Record, Frozen, Sealed, Namespace]
)
def test_batches_are_copied(kind):
    value = kind(X)
    result = convert(value, F16)
    assert type(result) is kind and result is not value
    assert (result.x.dtype, value.x.dtype) == (F16, torch.float32)


def test_all_kinds_of_slots():
    both = Both(X)
    both.more = X
    result = convert(both, F16)
    assert result.hidden().dtype == result.more.dtype == F16 and not hasattr(result, "unset")
    one = OneSlot()
    one.tensor = X
    assert convert(one, F16).tensor.dtype == F16


def test_batches_in_batches():
    """Objects without floats are shared."""
    value = Batch(N, more={"records": [Record(X), Frozen(N)], "names": ["a"]})
    result = convert(value, F16)
    first, second = result.more["records"]
    assert first.x.dtype == F16 and second is value.more["records"][1]
    assert result.x is N and result.more["names"] is value.more["names"]


def test_batches_that_refer_to_each_other():
    parent, child = Batch(X), Batch(X)
    parent.more, child.more = [child, child], parent
    result = convert(parent, F16)
    assert result.more[0] is result.more[1] and result.more[0].x.dtype == F16
    assert result.more[0].more is result and parent.more[0].more is parent
    lonely = Batch(N)
    lonely.more = lonely
    assert convert(lonely, F16) is lonely


def test_attributes_beside_items_are_kept():
    value = Encoding({"x": X}, name="encoding")
    result = convert(value, F16)
    assert (result["x"].dtype, value["x"].dtype) == (F16, torch.float32)
    assert type(result) is Encoding and result.name == "encoding"


def test_a_dataclass_that_is_a_mapping_keeps_both():
    result = convert(Scores(X), F16)
    assert type(result) is Scores and list(result) == ["logits", "count"] and result.count == 2
    assert result.logits is result["logits"] and result.logits.dtype == F16


def test_packed_sequences():
    packed = torch.nn.utils.rnn.pack_sequence([X, X[:1]])
    result = convert(packed, F16)
    assert type(result) is type(packed) and result.data.dtype == F16
    assert result.batch_sizes is packed.batch_sizes

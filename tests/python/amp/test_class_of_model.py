"""What programs do with the class of a model or optimizer that initialize returned: it passes for
the user's own."""

from __future__ import annotations

import abc
import copy
import functools
import pickle

import pytest
import torch
from nets import LEVELS

from torchamp import amp
from torchamp.optimizers import FusedSGD

pytestmark = pytest.mark.parametrize("level", LEVELS)


class Net(torch.nn.Module):
    #: The names of classes that were derived from it.
    derived: list[str] = []

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.linear = torch.nn.Linear(width, width)

    def __init_subclass__(cls) -> None:
        Net.derived.append(cls.__name__)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def copied(self) -> Net:
        """As target networks and averages are made."""
        made = self.__class__(self.width)
        made.load_state_dict(self.state_dict())
        return made


class Refusing(type):
    """The metaclass of one class alone."""

    made: list[str] = []

    def __new__(cls, name: str, bases: tuple, namespace: dict) -> type:
        if cls.made:
            raise TypeError("one is enough")
        cls.made.append(name)
        return super().__new__(cls, name, bases, namespace)


class Registered(torch.nn.Linear, metaclass=Refusing):
    pass


class Abstract(torch.nn.Module, abc.ABC):
    @abc.abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...


class Concrete(Abstract):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def initialized(model: torch.nn.Module, level: str) -> torch.nn.Module:
    return amp.initialize(model, opt_level=level, verbosity=0)


X = torch.ones(2, 4)


def test_makes_objects_of_the_users_class(level):
    model = initialized(Net(), level)
    made = type(model)(width=4)
    assert type(made) is Net and made.linear.weight.dtype == torch.float32
    made(X)
    target = model.copied()
    assert type(target) is Net
    assert torch.equal(target.linear.weight, model.state_dict()["linear.weight"])
    initialized(made, level)(X)


def test_slices_are_plain(level):
    model = initialized(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), level)
    backbone = model[:-1]
    assert type(backbone) is torch.nn.Sequential and backbone[0] is model[0]
    backbone(X.to(model[0].weight.dtype))


def test_can_be_derived_from(level):
    class Shifted(type(initialized(Net(), level))):
        def forward(self, x):
            return super().forward(x) + 1

    assert Shifted.__mro__[1] is Net and type(Shifted) is type
    Shifted()(X)
    assert Net.derived.pop() == "Shifted" and not Net.derived, "the user's own alone"


def test_is_a_class_of_the_users_objects(level):
    model, other = initialized(Net(), level), torch.nn.Linear(1, 1)
    kind = type(model)
    assert type(initialized(Net(), level)) is kind
    assert isinstance(Net(), kind) and isinstance(model, Net) and not isinstance(other, kind)
    assert issubclass(Net, kind) and issubclass(kind, Net) and not issubclass(type(other), kind)


def test_dispatches_as_the_users_class(level):
    @functools.singledispatch
    def name_of(module):
        return "other"

    name_of.register(Net, lambda module: "net")
    assert name_of(initialized(Net(), level)) == "net"


def test_pickles_and_copies_as_the_users_class(level):
    kind = type(initialized(Net(), level))
    assert pickle.loads(pickle.dumps(kind)) is Net
    assert type(copy.deepcopy(kind)()) is Net


def test_bypasses_the_users_metaclass(level):
    model = initialized(Registered(4, 4), level)
    assert Refusing.made == ["Registered"] and isinstance(type(model), Refusing)
    assert type(type(model)(4, 4)) is Registered


def test_of_an_abstract_base(level):
    model = initialized(Concrete(), level)
    assert isinstance(model, Abstract) and issubclass(type(model), Abstract)
    assert type(type(model)()) is Concrete


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, FusedSGD])
def test_of_an_optimizer(level, make):
    model = Net()
    optimizer = make(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    other = torch.nn.Linear(4, 4)
    made = type(optimizer)(other.parameters(), lr=0.5)
    assert type(made) is make and isinstance(made, type(optimizer))
    before = other.weight.detach().clone()
    other(X).sum().backward()
    made.step()
    assert not torch.equal(other.weight, before)

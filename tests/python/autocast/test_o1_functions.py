"""half_function, float_function, promote_function and bfloat16_function."""

import abc
import collections
import inspect

import pytest
import torch
from nets import initialized, linear_net
from torch import nn

from torchamp import Amp, amp

HALF, BFLOAT16, FLOAT32, FLOAT64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
LEVELS = {"O1": HALF, "O4": BFLOAT16}


def opened(level: str = "O1", device="cpu") -> Amp:
    return Amp(linear_net().to(device), opt_level=level, verbosity=0)


def types_of(*values):
    """A custom function that returns the dtypes of its arguments."""
    return [value.dtype if isinstance(value, torch.Tensor) else value for value in values]


def ones(dtype: torch.dtype, device="cpu") -> torch.Tensor:
    return torch.ones(2, 2, dtype=dtype, device=device)


@pytest.mark.parametrize("level", LEVELS)
def test_decorators_cast_while_it_is_open(level, device):
    low = LEVELS[level]
    given = ones(low, device), ones(FLOAT32, device), ones(FLOAT64, device), 3
    cases = {
        amp.half_function: [low, low, FLOAT64, 3],
        amp.bfloat16_function: [BFLOAT16, BFLOAT16, FLOAT64, 3],
        amp.float_function: [FLOAT32, FLOAT32, FLOAT64, 3],
        amp.promote_function: [FLOAT32, FLOAT32, FLOAT64, 3],
    }
    for decorate, expected in cases.items():
        function = decorate(types_of)
        assert function(*given) == types_of(*given)
        with opened(level, device):
            assert function(*given) == expected
            with amp.disable_casts():
                assert function(*given) == types_of(*given)
        assert function(*given) == types_of(*given)


@pytest.mark.parametrize("level", ["O0", "O2", "O3", "O5"])
def test_other_levels_do_not_cast(level):
    keeper = initialized(level, linear_net())
    assert amp.float_function(types_of)(ones(HALF)) == [HALF]
    del keeper


def test_promote_leaves_one_type_alone(device):
    with opened(device=device):
        promoted = amp.promote_function(types_of)
        assert promoted(ones(HALF, device), ones(HALF, device)) == [HALF, HALF]
        assert promoted(ones(HALF, device), ones(BFLOAT16, device)) == [HALF, BFLOAT16]


def test_keywords_and_nested_sequences():
    Pair = collections.namedtuple("Pair", "a b")
    seen = amp.float_function(lambda *args, **kwargs: (args, kwargs))
    h = ones(HALF)
    with opened():
        (pair, nested, mixed), options = seen(Pair(h, h), [(h,), h], [h, 1], key=h, table={"x": h})
    assert isinstance(pair, Pair) and pair.a.dtype == FLOAT32
    assert nested[0][0].dtype == nested[1].dtype == options["key"].dtype == FLOAT32
    assert isinstance(nested, list) and isinstance(nested[0], tuple)
    assert mixed[0] is h and options["table"]["x"] is h


def test_arguments_are_not_changed_and_gradients_reach_them():
    x = torch.ones(2, requires_grad=True)
    with opened():
        arguments = [x]
        amp.half_function(lambda values: values[0].sum())(arguments).backward()
    assert arguments[0] is x and x.grad.dtype == FLOAT32


def test_inside_of_a_programs_function_o1_casts_as_everywhere():
    with opened():
        assert amp.float_function(lambda x: x @ x)(ones(HALF)).dtype == HALF


def test_names_signatures_and_marks_are_kept():
    class Base(abc.ABC):
        @amp.float_function
        @abc.abstractmethod
        def forward(self, x, *, scale=1):
            """Says so."""

    assert Base.forward.__name__ == "forward" and Base.forward.__doc__ == "Says so."
    assert list(inspect.signature(Base.forward).parameters) == ["self", "x", "scale"]
    with pytest.raises(TypeError, match="abstract"):
        Base()


def test_over_and_under_staticmethod():
    class Over:
        @amp.float_function
        @staticmethod
        def f(x):
            return x.dtype

    class Under:
        @staticmethod
        @amp.float_function
        def f(x):
            return x.dtype

    with opened():
        for owner in (Over, Over(), Under, Under()):
            assert owner.f(ones(HALF)) == FLOAT32


def test_a_bound_method_put_back_on_its_object():
    loss = nn.MSELoss()
    loss.forward = amp.half_function(loss.forward)
    with opened():
        assert loss(ones(FLOAT32), ones(FLOAT32)).dtype == HALF

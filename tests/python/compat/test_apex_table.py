"""apex's names, signatures, bases and attributes, against a table of apex's."""

import importlib
import inspect
from functools import partial

import pytest
from compat import table
from compat.optimizers import initialized
from nets import linear_net, sgd
from torch import nn


def found(path):
    """What the dotted `path` names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def parameters_of(signature):
    """Of positional ones: names, kinds and defaults; of others those without a default."""
    P = inspect.Parameter  # noqa: N806
    return [
        (each.name, each.kind, each.default)
        for each in signature.parameters.values()
        if each.kind is not P.KEYWORD_ONLY
    ]


def is_as_told(function, told):
    written = eval(f"lambda {told.partition('(')[2][:-1]}: None")
    return parameters_of(inspect.signature(function)) == parameters_of(inspect.signature(written))


def check(name, is_right):
    """Right, or with a reason in the list of those that are otherwise, and not both."""
    assert is_right != (name in table.OTHERWISE), name


FUNCTIONS = [(m, each) for m, functions in table.FUNCTIONS.items() for each in functions]


@pytest.mark.parametrize(("module", "told"), FUNCTIONS, ids=lambda each: each.partition("(")[0])
def test_functions(module, told):
    name = f"{module}.{told.partition('(')[0]}"
    check(name, is_as_told(found(name), told))
    assert name.rpartition(".")[2] in vars(importlib.import_module(module))


@pytest.mark.parametrize("module", table.NAMES)
def test_names(module):
    there = vars(importlib.import_module(module))
    assert set(table.NAMES[module].split()) <= set(there)


@pytest.mark.parametrize("name", table.CLASSES)
def test_bases_and_constructors(name):
    base, told, _ = table.CLASSES[name]
    kind = found(name)
    assert issubclass(kind, found(base))
    if told is not None:
        check(name, is_as_told(kind, told))


ARGUMENTS = {
    "apex.amp.handle.AmpHandle": lambda: {"casts": None},
    "apex.fp16_utils.FP16Model": lambda: {"network": linear_net()},
    "apex.fp16_utils.FP16_Optimizer": lambda: {"init_optimizer": sgd(linear_net())},
    "apex.multi_tensor_apply.MultiTensorApply": partial(dict, chunk_size=16),
    "apex.parallel.DistributedDataParallel": lambda: {"module": nn.Linear(2, 2)},
    "apex.parallel.SyncBatchNorm": partial(dict, num_features=2),
    "apex.parallel.LARC.LARC": lambda: {"optimizer": sgd(linear_net())},
}


@pytest.mark.parametrize("name", [name for name, row in table.CLASSES.items() if row[2]])
def test_attributes(name, one_rank):
    arguments = ARGUMENTS.get(name, dict)()
    if "normalization" in name:
        arguments = {"normalized_shape": 4}
    made = found(name)(**arguments)
    for attribute in table.CLASSES[name][2].split():
        check(f"{name}.{attribute}", hasattr(made, attribute))


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_optimizers_after_initialize(level):
    model, optimizer = initialized(level)
    assert all(hasattr(optimizer, name) for name in table.OPTIMIZER.split())
    assert all(hasattr(optimizer._amp_stash, name) for name in table.STASH.split())


def test_every_reason_is_of_an_entry():
    entries = {f"{module}.{told.partition('(')[0]}" for module, told in FUNCTIONS}
    entries |= {
        f"{name}.{attribute}" for name, row in table.CLASSES.items() for attribute in row[2].split()
    }
    assert set(table.OTHERWISE) <= entries | set(table.CLASSES)

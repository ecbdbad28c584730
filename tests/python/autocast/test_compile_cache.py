"""torch.compile's cache on disk: graphs of O1 and O4 are not those of torch.autocast."""

import contextlib
import functools
import gc
import shutil
import types

import pytest
import torch
from nets import in_thread, initialized, linear_net
from processes.forked import output_of

from torchamp import amp
from torchamp.amp._casts import autocast as _autocast

LEVELS = {"O1": torch.float16, "O4": torch.bfloat16}
X, WEIGHT = torch.linspace(-1, 1, 32).reshape(4, 8), torch.ones(8, 8)


@contextlib.contextmanager
def opened(level: str):
    model, optimizer = initialized(level, linear_net())
    try:
        yield model
    finally:
        amp.release(model)


def torch_autocast(level: str):
    return torch.autocast("cpu", LEVELS[level])


def part_of_key() -> bytes:
    """The part of torch.compile's keys that AOTAutograd's settings are."""
    return torch._functorch.config.save_config()


def compiled(scope: contextlib.AbstractContextManager) -> tuple[torch.dtype, int]:
    """The dtype that a compiled function has in `scope`, and how many graphs were on disk."""

    def function(x):
        return torch.exp(x @ WEIGHT)

    hits = torch._dynamo.utils.counters["aot_autograd"]
    before = hits["autograd_cache_hit"]
    torch._dynamo.reset()
    gc.collect()
    with scope:
        dtype = torch.compile(function)(X).dtype
    return dtype, hits["autograd_cache_hit"] - before


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a compiler")
@torch._inductor.config.patch(compile_threads=1)
@pytest.mark.soak
@pytest.mark.parametrize("level", LEVELS)
def test_each_finds_its_own_graphs_on_disk(level, tmp_path, monkeypatch):
    """In both orders, which a tag of the program keeps apart."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    expected = {opened: torch.float32, torch_autocast: LEVELS[level]}
    for order in ([opened, torch_autocast], [torch_autocast, opened]):
        with torch.compiler.config.patch(cache_key_tag=order[0].__name__):
            for hits in (0, 1):
                for scope in order:
                    assert compiled(scope(level)) == (expected[scope], hits), scope


@pytest.mark.parametrize("level", LEVELS)
def test_keys_of_code_that_is_not_cast_stay_the_same(level):
    plain = part_of_key()
    with opened(level):
        assert in_thread(part_of_key) == plain
        with amp.disable_casts():
            assert part_of_key() == plain
        with torch.autocast("cpu", enabled=False):
            assert part_of_key() == plain
    assert part_of_key() == plain
    with torch_autocast(level):
        assert part_of_key() == plain


def test_keys_tell_the_levels_apart():
    """In forwards of other threads and in a torch.autocast too, where their rules hold."""
    plain, keys = part_of_key(), set()
    for level in LEVELS:
        with opened(level) as model:
            keys.add(part_of_key())
            model[0].register_forward_hook(lambda *_: keys.add(part_of_key()))
            in_thread(functools.partial(model, X[:, :4]))
            with torch_autocast(level):
                keys.add(part_of_key())
    assert len(keys | {plain}) == 3


def test_keys_have_the_registered_functions(monkeypatch):
    monkeypatch.setattr(_autocast.OPEN, "_patches", [*_autocast.OPEN._patches])
    module = types.SimpleNamespace(mix=torch.add, join=torch.add)
    keys = set()
    with opened("O1"):
        keys.add(part_of_key())
        amp.register_half_function(module, "mix")
        keys.add(part_of_key())
        amp.register_float_function(module, "mix")
        keys.add(part_of_key())
        amp.register_float_function(module, "join")
        keys.add(part_of_key())
    assert len(keys) == 4


PROGRAM = """
import torch, torch._functorch.config
from torchamp import amp
plain = torch._functorch.config.save_config()
model = amp.initialize(torch.nn.Linear(2, 2), opt_level="O4", verbosity=0)
print(torch._functorch.config.save_config()[len(plain):])
"""


def test_other_processes_have_the_same_keys(start_python):
    started = [start_python("-c", PROGRAM, PYTHONHASHSEED=seed) for seed in "12"]
    first, second = (output_of(each.wait()) for each in started)
    assert first == second != f"{b''}\n"

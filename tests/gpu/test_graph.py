"""A captured graph of scale, backward, unscale and step matches the same steps run eagerly."""

import gc

import pytest
import torch
from mixed_step import MixedStep
from on_card import captured

from torchamp import optimizers

STEPS = 30
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def states_of(step, run) -> torch.Tensor:
    states = []
    for _ in range(STEPS):
        run()
        states.append(step.state())
    return torch.stack(states).cpu()


@pytest.mark.parametrize("device", DEVICES)
def test_steps_that_overflow_are_skipped_and_the_rest_learn(device):
    step = MixedStep(torch.device(device))
    masters_before = step.state()[:-3].cpu()
    states = states_of(step, step)
    loss_scale, found_inf, loss = states[:, -3], states[:, -2], states[:, -1]
    masters = torch.cat([masters_before[None], states[:, :-3]])
    assert found_inf[0] == 1 and loss_scale[0] == 2.0**23, "the first step did not overflow"
    for index, overflow in enumerate(found_inf.bool()):
        kept = torch.equal(masters[index], masters[index + 1])
        assert kept == overflow, f"step {index}: overflow {bool(overflow)}, masters kept {kept}"
    assert (loss_scale[1:] > loss_scale[:-1]).any(), "the scale never grew again"
    assert loss[-1] < 0.9 * loss[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_replays_equal_eager_steps():
    eager = MixedStep(torch.device("cuda"))
    expected = states_of(eager, eager)
    warm_up = MixedStep(torch.device("cuda"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    step = MixedStep(torch.device("cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    got = states_of(step, graph.replay)
    assert torch.equal(got[:, -3:-1], expected[:, -3:-1]), "scales or skips differ"
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_states_that_a_replay_uses_are_not_given_away():
    param = torch.ones(2**20, device="cuda", requires_grad=True)
    param.grad = torch.ones_like(param)
    optimizer = optimizers.FusedAdam([param])
    graph = captured(optimizer.step)
    states = optimizer.state[param]
    used = {states[name].data_ptr() for name in ("exp_avg", "exp_avg_sq")}
    torch.cuda._sleep(500_000_000)
    graph.replay()
    del optimizer, states
    gc.collect()
    given = []
    for _ in range(64):  # more than there are streams in torch's pool
        with torch.cuda.stream(torch.cuda.Stream()):
            given.append(torch.empty_like(param))
    assert used.isdisjoint(each.data_ptr() for each in given)
    torch.cuda.synchronize()

"""An iteration as a graph: what runs when, what is noticed between calls, and what is refused. On a
CPU, with a stand-in for the graph; tests/gpu has CUDA's."""

from __future__ import annotations

import logging
import sys
import threading
from typing import ClassVar

import pytest
import torch
from nets import LEVELS, adam, changed, everything, fused_adam, initialized, sgd, warned
from stand_in_graphs import Recorded, graphs_of
from torch import nn

from torchamp import amp, optimizers
from torchamp.amp import _graphed

NO_WHOLE_ITERATION = (
    "graphed: expected a function that begins with zero_grad() and ends with step(), got "
)


class Training:
    """Calls of an iteration, through `graphed` with a stand-in or as they are."""

    made: ClassVar[list[Training]] = []

    def __init__(self, monkeypatch, level="O2", optimizer=fused_adam, through=True, **options):
        torch.manual_seed(3)
        self.made.append(self)
        max_graphs = {"max_graphs": options.pop("max_graphs", 8)}
        self.model, self.optimizer = initialized(level, optimizer=optimizer, **options)
        self.recorded = Recorded(self.iteration, self.model, self.optimizer)
        self.run = self.recorded
        if through:
            monkeypatch.setattr(_graphed._Graphed, "graphs_of", graphs_of(self.recorded))
            self.run = amp.graphed(self.recorded, **max_graphs)

    def iteration(self, data, target):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(data).float(), target)
        amp.scale_loss(loss, self.optimizer).backward()
        self.optimizer.step()
        return loss

    def call(self, seed: int = 0, rows: int = 16) -> float:
        generator = torch.Generator().manual_seed(seed)
        data = torch.randn(rows, 4, generator=generator)
        return self.run(data, (data.sum(1) > 0).long()).item()

    def calls(self, count: int) -> list[float]:
        return [self.call(seed) for seed in range(count)]

    def everything(self):
        return everything(self.model, self.optimizer)


def both(monkeypatch, **options) -> tuple[Training, Training]:
    return Training(monkeypatch, **options), Training(monkeypatch, through=False, **options)


def assert_equal(graphed: Training, eager: Training) -> None:
    assert changed(graphed.everything(), eager.everything()) == set()


@pytest.fixture(autouse=True)
def _released():
    yield
    while Training.made:
        amp.release(Training.made.pop().model)


OPTIMIZERS = {
    "FusedAdam": fused_adam,
    "SGD": lambda model: sgd(model, fused=True),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), fused=True),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_iteration_is_the_eager_one(monkeypatch, level, name):
    if (name, level) == ("SGD", "O3"):
        pytest.skip("torch's fused SGD on a CPU writes momentum of 16 bits at random")
    trainings = both(monkeypatch, level=level, optimizer=OPTIMIZERS[name])
    losses = [training.calls(12) for training in trainings]
    assert losses[0] == losses[1]
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 1


def test_three_calls_come_before_a_capture_and_replays_after_it(monkeypatch):
    training = Training(monkeypatch)
    captures = []
    for seed in range(6):
        training.call(seed)
        captures.append((training.recorded.calls, training.recorded.captures))
    assert captures == [(1, 0), (2, 0), (3, 0), (4, 1), (4, 1), (4, 1)]


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_schedulers_are_followed_and_find_numbers(monkeypatch, level):
    trainings = both(monkeypatch, level=level)
    for training in trainings:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 10)
        for seed in range(10):
            training.call(seed)
            scheduler.step()
            assert isinstance(training.optimizer.param_groups[0]["lr"], float)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 1


def test_a_learning_rate_that_is_a_tensor_stays_it(monkeypatch):
    trainings = both(monkeypatch)
    for training in trainings:
        rate = training.optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
        for seed in range(8):
            rate.fill_(0.01 / (1 + seed))
            training.call(seed)
        assert training.optimizer.param_groups[0]["lr"] is rate
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 1


def overflowing(training: Training) -> list[float]:
    state = amp.state_dict()
    state["loss_scaler0"]["loss_scale"] = 2.0**40
    amp.load_state_dict(state)
    return training.calls(30)


def test_overflows_skip_steps(monkeypatch):
    losses, scales, trainings = [], [], both(monkeypatch)
    for training in trainings:
        # The scalers that amp.state_dict() is of are the last initialize's.
        training = Training(monkeypatch, through=training is trainings[0])
        losses.append(overflowing(training))
        scales.append(amp.state_dict()["loss_scaler0"]["loss_scale"])
    assert losses[0] == losses[1]
    assert scales[0] == scales[1] < 2.0**40


def test_other_shapes_take_another_graph(monkeypatch):
    trainings = both(monkeypatch)
    for training in trainings:
        for seed in range(14):
            training.call(seed, rows=16 - seed % 2)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 2


def test_beyond_max_graphs_calls_run_as_they_are(monkeypatch):
    training = Training(monkeypatch, max_graphs=2)
    with warned() as texts:
        for seed in range(24):
            training.call(seed, rows=16 - seed % 4)
    assert texts == [
        "graphed: expected arguments of at most 2 forms (shapes, dtypes, and values of what is no "
        "tensor), got another; such calls run without a graph. Give graphed a larger max_graphs, "
        "or pad the inputs"
    ]
    assert training.recorded.captures == 2


def test_values_of_what_is_no_tensor_are_constants_of_a_graph(monkeypatch):
    training = Training(monkeypatch)
    plain = training.iteration

    def iteration(batch, *, factor):
        assert isinstance(batch, dict)
        return plain(batch["data"] * factor, batch["target"])

    training.recorded._function = iteration
    data, target = torch.randn(16, 4), torch.zeros(16, dtype=torch.long)
    for factor in [1.0] * 5 + [2.0] * 5 + [1.0] * 2:
        training.run({"data": data, "target": target}, factor=factor)
    assert training.recorded.captures == 2


CHANGES = {
    "an option": lambda training: training.optimizer.param_groups[0].update(weight_decay=0.5),
    "frozen": lambda training: training.model.first.weight.requires_grad_(False),
    "states": lambda training: training.optimizer.state.clear(),
    "loaded": lambda training: training.optimizer.load_state_dict(training.optimizer.state_dict()),
    "another parameter": lambda training: training.optimizer.param_groups[0]["params"].pop(),
}


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_call_after_the_next_is_captured(monkeypatch, level, name, caplog):
    trainings = both(monkeypatch, level=level)
    with caplog.at_level(logging.INFO, "torchamp"):
        for training in trainings:
            training.calls(6)
            CHANGES[name](training)
            training.calls(6)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 2
    assert caplog.messages == [
        "graphed: captured again after a change of options, parameters or states of an optimizer, "
        "or grads outside of it"
    ]


def overwritten(training: Training) -> None:
    with torch.no_grad():
        for param in training.model.parameters():
            param.mul_(0.5)


def written_in_float32(training: Training) -> None:
    with amp.float32_params(training.model):
        overwritten(training)


def written_masters(training: Training) -> None:
    for param in amp.master_params(training.optimizer):
        param.detach().mul_(0.5)


def loaded(training: Training) -> None:
    training.model.load_state_dict(
        {name: value * 0.5 for name, value in training.model.state_dict().items()}
    )


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
@pytest.mark.parametrize("write", [overwritten, written_in_float32, written_masters, loaded])
def test_weights_written_between_calls_count(monkeypatch, level, write):
    trainings = both(monkeypatch, level=level)
    for training in trainings:
        training.calls(6)
        write(training)
        training.calls(6)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 1


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_weights_that_the_function_writes_count(monkeypatch, level):
    trainings = both(monkeypatch, level=level)
    for training in trainings:
        plain = training.iteration

        def clamped(data, target, training=training, plain=plain):
            loss = plain(data, target)
            with torch.no_grad():
                for param in training.model.parameters():
                    param.clamp_(-0.25, 0.25)
            return loss

        training.recorded._function = clamped
        training.calls(12)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 1


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_averages_in_the_function_and_files_between_calls(monkeypatch, level, tmp_path):
    averages, trainings = [], both(monkeypatch, level=level)
    for training in trainings:
        masters = [param.detach().clone() for param in amp.master_params(training.optimizer)]
        average = nn.ParameterList(nn.Parameter(each, requires_grad=False) for each in masters)
        training.recorded._model = nn.ModuleList([training.model, average])
        plain = training.iteration

        def averaged(data, target, training=training, plain=plain, average=average):
            loss = plain(data, target)
            for each, param in zip(average, amp.master_params(training.optimizer)):
                each.lerp_(param.detach(), 0.1)
            return loss

        training.recorded._function = averaged
        training.calls(6)
        amp.save(training.model, training.optimizer, tmp_path / "run.pt")
        training.calls(3)
        amp.load(training.model, training.optimizer, tmp_path / "run.pt")
        training.calls(6)
        averages.append(average)
    assert_equal(*trainings)
    assert all(torch.equal(*pair) for pair in zip(*averages))
    assert trainings[0].recorded.captures == 2


def test_what_changes_before_each_call_ends_the_captures(monkeypatch):
    trainings = both(monkeypatch)
    with warned() as texts:
        for training in trainings:
            for seed in range(12):
                training.optimizer.param_groups[0]["betas"] = (0.9 - 0.01 * seed, 0.999)
                training.call(seed)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 3
    assert texts == [
        "graphed: expected options, parameters or states of an optimizer, or grads outside of it "
        "to stay, got changes before 3 calls in a row; calls run without a graph. Of the options, "
        "learning rates alone may change: OneCycleLR needs cycle_momentum=False"
    ]


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_grads_are_those_of_the_call(monkeypatch, level):
    trainings = both(monkeypatch, level=level)
    for training in trainings:
        training.calls(8)
    pairs = zip(*(training.model.parameters() for training in trainings))
    assert all(torch.equal(mine.grad, eager.grad) for mine, eager in pairs)


def test_grads_zeroed_outside_of_the_function(monkeypatch):
    trainings = both(monkeypatch)
    for training in trainings:
        training.optimizer.zero_grad = lambda *_: None
        for seed in range(10):
            for param in training.model.parameters():
                param.grad = None
            training.call(seed)
    assert_equal(*trainings)


def test_grads_zeroed_outside_once_are_noticed(monkeypatch):
    """They may be there in the next call, to be added to."""
    trainings = both(monkeypatch)
    for training in trainings:
        for seed in range(10):
            if seed == 3:
                training.optimizer.zero_grad()
            training.call(seed)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 2


def test_results_are_the_graphs(monkeypatch):
    training = Training(monkeypatch)
    batch = torch.randn(16, 4), torch.zeros(16, dtype=torch.long)
    results = [training.run(*batch) for _ in range(6)]
    assert len({id(result) for result in results[3:]}) == 1
    assert not results[3].requires_grad


def test_the_function_keeps_its_name():
    def iteration():
        """Trains."""

    assert amp.graphed(iteration).__name__ == "iteration"
    assert amp.graphed(iteration).__doc__ == "Trains."


def refused(training: Training, kind: type[Exception], text: str) -> None:
    """The fourth call and later ones raise, and change nothing."""
    training.calls(3)
    before = training.everything()
    for _ in range(2):
        with pytest.raises(kind) as raised:
            training.call()
        assert str(raised.value).split("\nException raised")[0] == text
    assert changed(before, training.everything()) == set()


def waits(what: str) -> str:
    return (
        f"graphed: expected optimizers whose steps never wait for the device, got {what}; take one "
        "of torchamp.optimizers, or torch's with fused=True, and capturable=True where it has that"
    )


@pytest.mark.parametrize(
    ("level", "optimizer", "what"),
    [
        ("O2", sgd, "SGD with fused=None"),
        ("O5", sgd, "SGD with fused=None"),
        ("O5", adam, "Adam with fused=None, capturable=False"),
        ("O2", lambda model: adam(model, fused=True), "Adam with fused=True, capturable=False"),
        ("O5", lambda model: torch.optim.Adafactor(model.parameters()), "Adafactor"),
    ],
)
def test_optimizers_that_wait_are_refused(monkeypatch, level, optimizer, what):
    refused(Training(monkeypatch, level=level, optimizer=optimizer), TypeError, waits(what))


def test_a_fused_optimizers_subclass_is_refused(monkeypatch):
    class Own(optimizers.FusedAdam):
        def step(self, closure=None):
            return super().step(closure)

    training = Training(monkeypatch, optimizer=lambda model: Own(model.parameters()))
    refused(training, TypeError, waits("Own"))


def test_a_function_that_steps_schedulers_is_refused(monkeypatch):
    training = Training(monkeypatch)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
    plain = training.iteration
    training.recorded._function = lambda *batch: (plain(*batch), scheduler.step())[0]
    refused(
        training,
        RuntimeError,
        "graphed: expected a function that leaves learning rates alone, got one that changes that "
        "of FusedAdam, which replays would not; step schedulers after the call",
    )


def test_a_function_that_steps_nothing_is_refused(monkeypatch):
    training = Training(monkeypatch)
    training.recorded._function = lambda data, target: training.model(data).float().sum()
    refused(training, RuntimeError, f"{NO_WHOLE_ITERATION}one that steps no optimizer")


def test_a_strangers_step_is_refused(monkeypatch):
    training = Training(monkeypatch)
    stranger = sgd(nn.Linear(2, 2))
    plain = training.iteration
    training.recorded._function = lambda *batch: (plain(*batch), stranger.step())[0]
    refused(
        training,
        RuntimeError,
        "graphed: expected optimizer to be an optimizer that initialize returned, got an SGD that "
        "it did not; pass it to initialize with its model",
    )


def test_steps_in_other_threads_are_left_alone(monkeypatch):
    """Of optimizers that the function does not step, while it is called and captured."""
    training = Training(monkeypatch)
    others = [sgd(nn.Linear(2, 2)), initialized("O2", optimizer=sgd)[1]]
    plain, errors = training.iteration, []

    def step_others():
        try:
            for other in others:
                other.step()
        except RuntimeError as error:
            errors.append(error)

    def iteration(data, target):
        thread = threading.Thread(target=step_others)
        thread.start()
        thread.join()
        return plain(data, target)

    training.recorded._function = iteration
    training.calls(6)
    assert errors == []
    assert training.recorded.captures == 1


def test_inputs_that_require_grads_are_refused(monkeypatch):
    training = Training(monkeypatch)
    batch = torch.randn(16, 4, requires_grad=True), torch.zeros(16, dtype=torch.long)
    for _ in range(3):
        training.run(*batch)
    with pytest.raises(RuntimeError) as raised:
        training.run(*batch)
    assert str(raised.value) == (
        "graphed: expected arguments that require no grad, got one that does, which replays would "
        "not reach; compute it in the function, or pass it as x.detach()"
    )


OLD_GRAD = (
    f"{NO_WHOLE_ITERATION}a step by a grad of an earlier call; give one call all micro-batches of "
    "its step, and let zero_grad() drop the grads, as it does by default"
)


def step_first(training: Training, data, target):
    training.optimizer.step()
    training.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(training.model(data).float(), target)
    amp.scale_loss(loss, training.optimizer).backward()
    return loss


def zero_in_place(training: Training, data, target):
    training.optimizer.zero_grad(set_to_none=False)
    loss = nn.functional.cross_entropy(training.model(data).float(), target)
    amp.scale_loss(loss, training.optimizer).backward()
    training.optimizer.step()
    return loss


@pytest.mark.parametrize("function", [step_first, zero_in_place])
@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_steps_by_grads_of_an_earlier_call_are_refused_once(monkeypatch, level, function):
    """Later calls run as they are, and are right."""
    trainings = both(monkeypatch, level=level)
    for training in trainings:
        training.recorded._function = lambda *batch, training=training: function(training, *batch)
        training.calls(3)
    with pytest.raises(RuntimeError) as raised:
        trainings[0].call()
    assert str(raised.value).split("\nException raised")[0] == OLD_GRAD
    for training in trainings:
        training.calls(3)
    assert_equal(*trainings)


class Alternating:
    """Two models, of which calls train one."""

    def __init__(self, monkeypatch) -> None:
        torch.manual_seed(3)
        self.pairs = [initialized("O5", optimizer=fused_adam) for _ in range(2)]
        models = nn.ModuleList(model for model, _ in self.pairs)
        self.recorded = Recorded(self.iteration, models, *(each for _, each in self.pairs))
        monkeypatch.setattr(_graphed._Graphed, "graphs_of", graphs_of(self.recorded))
        self.run = amp.graphed(self.recorded)
        self.count = 0

    def iteration(self, data, which=None):
        self.count += 1
        model, optimizer = self.pairs[self.count % 2 if which is None else which]
        optimizer.zero_grad()
        amp.scale_loss(model(data).float().square().mean(), optimizer).backward()
        optimizer.step()


def test_an_argument_may_say_which_optimizer_steps(monkeypatch):
    training = Alternating(monkeypatch)
    for i in range(12):
        before = [everything(*pair) for pair in training.pairs]
        training.run(torch.randn(16, 4), i % 2)
        after = [everything(*pair) for pair in training.pairs]
        assert [bool(changed(*each)) for each in zip(before, after)] == [i % 2 == 0, i % 2 == 1]
    assert training.recorded.captures == 2


def test_optimizers_that_step_in_some_calls_are_refused_once(monkeypatch):
    """Later calls run as they are."""
    training = Alternating(monkeypatch)
    for _ in range(3):
        training.run(torch.randn(16, 4))
    with pytest.raises(RuntimeError) as raised:
        training.run(torch.randn(16, 4))
    assert str(raised.value).split("\nException raised")[0] == (
        "graphed: expected a function that steps the same optimizers in each call with arguments "
        "of one form, got one that does not; give it an argument that says which"
    )
    for _ in range(4):
        training.run(torch.randn(16, 4))
    assert training.count == 8


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
@pytest.mark.parametrize("place", ["after the backward", "after the step"])
def test_a_capture_that_fails_is_undone_and_names_the_line(monkeypatch, level, place):
    trainings = both(monkeypatch, level=level)
    for training in trainings:

        def iteration(data, target, training=training):
            training.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(training.model(data).float(), target)
            amp.scale_loss(loss, training.optimizer).backward()
            if training.recorded.is_captured and place == "after the backward":
                raise ValueError("no capture")  # here
            training.optimizer.step()
            if training.recorded.is_captured:
                raise ValueError("no capture")  # here
            return loss

        training.recorded._function = iteration
        training.calls(3)
    before = trainings[0].everything()
    with pytest.raises(ValueError) as raised:
        trainings[0].call()
    assert str(raised.value) == "no capture"
    if sys.version_info >= (3, 11):
        (note,) = raised.value.__notes__
        assert note.startswith(f"torchamp: graphed: {__file__}, line ")
        assert note.endswith(
            ', could not be captured into a CUDA graph: raise ValueError("no capture")  # here'
        )
    assert changed(before, trainings[0].everything()) == set()
    for training in trainings:
        training.calls(5)
    assert_equal(*trainings)
    assert trainings[0].recorded.captures == 1


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
@pytest.mark.parametrize("is_interrupt", [False, True])
def test_grads_are_as_before_a_capture_that_fails(monkeypatch, level, is_interrupt):
    """At its end, or by an interrupt in the function."""
    training = Training(monkeypatch, level=level)
    training.calls(3)
    grads = [param.grad for param in training.model.parameters()]
    plain = training.iteration

    def interrupted(*batch):
        plain(*batch)
        raise KeyboardInterrupt

    def fails():
        raise ValueError("no end")

    monkeypatch.setattr(training.recorded, "replayed", fails)
    if is_interrupt:
        training.recorded._function = interrupted
    with pytest.raises(KeyboardInterrupt if is_interrupt else ValueError):
        training.call()
    assert all(param.grad is grad for param, grad in zip(training.model.parameters(), grads))


@pytest.mark.parametrize("last", [True, False], ids=["last", "then_another"])
def test_without_mixed_precision_it_calls_the_function(monkeypatch, last):
    training = Training(monkeypatch, enabled=False)
    if not last:
        amp.release(initialized("O2")[0])
    losses = training.calls(6)
    assert training.recorded.calls == 6 and training.recorded.captures == 0
    assert losses == Training(monkeypatch, enabled=False, through=False).calls(6)


def test_on_a_cpu_it_calls_the_function():
    model, optimizer = initialized("O2", optimizer=sgd)
    calls = []

    @amp.graphed
    def iteration(data, target, **options):
        calls.append(options)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data).float(), target)
        amp.scale_loss(loss, optimizer).backward()
        optimizer.step()
        return loss

    with warned() as texts:
        for i in range(20):
            data = torch.randn(1 + i, 4) if i else torch.randn(2, 4)
            assert iteration(data, torch.zeros(len(data), dtype=torch.long), number=i).requires_grad
            model.eval()
    assert len(calls) == 20
    assert texts == []


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((None,), TypeError, "graphed: expected function to be a function, got a NoneType"),
        ((print, "2"), TypeError, "graphed: expected max_graphs to be an integer, got a str"),
        ((print, 0), ValueError, "graphed: expected max_graphs to be at least 1, got 0"),
    ],
)
def test_wrong_arguments(arguments, kind, text):
    function, *count = arguments
    with pytest.raises(kind) as raised:
        amp.graphed(function, **dict(zip(["max_graphs"], count)))
    assert str(raised.value) == text

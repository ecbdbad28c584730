"""What a program gets for using torchamp wrongly: an error where it is certainly wrong, one warning
where it may be meant, the right result where there is one."""

from __future__ import annotations

import copy
import io
import math
import re
import warnings
from collections.abc import Callable

import pytest
import torch
from nets import Net, adam, backward, initialized, linear_net, loss_of, sgd
from torch import nn

import torchamp
from torchamp import amp, ops, optimizers


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return optimizers.FusedAdam(model.parameters(), lr=0.01)


def made(level: str = "O2", optimizer=sgd, model: nn.Module | None = None, **options):
    options = {"loss_scale": 1024.0, **options}
    return initialized(level, linear_net() if model is None else model, optimizer, **options)


def initialize(*arguments, **options):
    return amp.initialize(*arguments, **{"opt_level": "O2", "verbosity": 0, **options})


def half_of(loss: torch.Tensor) -> torch.Tensor:
    return loss * 0.5


# What initialize is given.


def a_tuple_of_models():
    initialize((linear_net(),))


def no_model():
    initialize("model")


def optimizer_for_a_model():
    initialize(sgd(linear_net()), linear_net())


def a_generator_of_optimizers():
    net = linear_net()
    initialize(net, (each for each in [sgd(net)]))


def a_half_model():
    net = linear_net().half()
    initialize(net, sgd(net))


def a_wrapped_model():
    net = nn.DataParallel(linear_net())
    initialize(net, sgd(net))


def a_scripted_model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch calls it deprecated
        net = torch.jit.trace(linear_net(), torch.zeros(1, 4))
    initialize(net, sgd(net))


def a_lazy_model():
    net = nn.Sequential(nn.LazyLinear(3))
    initialize(net)


def the_model_twice():
    net, optimizer = made()
    initialize(net, sgd(net))


def the_optimizer_twice():
    net, optimizer = made()
    initialize(linear_net(), optimizer)


def one_optimizer_in_two_places():
    net = linear_net()
    optimizer = sgd(net)
    try:
        initialize(net, [optimizer, optimizer])
    finally:
        assert net[0].weight.dtype == torch.float32


def an_optimizer_of_another_model():
    initialize(linear_net(), sgd(linear_net()))


def an_optimizer_of_a_copy():
    net = linear_net()
    initialize(copy.deepcopy(net), sgd(net))


def one_optimizer_of_another_model():
    net = linear_net()
    initialize(net, [sgd(net), sgd(linear_net())])


def a_teacher(level: str = "O2"):
    student = linear_net()
    initialize([student, copy.deepcopy(student)], sgd(student), opt_level=level)


def a_teacher_that_stays_as_it_is():
    student, _ = made("O2")
    teacher = amp.cast_for_inference(linear_net(), torch.float16)
    assert teacher(torch.ones(1, 4)).dtype == student(torch.ones(1, 4)).dtype


def an_average_of_the_student(level: str):
    student, optimizer = made(level, lambda net: sgd(net, lr=1e-3, momentum=0.0))
    teacher = amp.AveragedModel(
        student, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    before = teacher.module[0].weight.clone()
    for seed in range(5):
        backward(student, optimizer, seed)
        optimizer.step()
        teacher.update_parameters(student)
    assert not torch.equal(teacher.module[0].weight, before)


def models_that_no_optimizer_steps():
    """Features of a loss, and inference."""
    student = linear_net()
    initialize([student, Net().requires_grad_(False)], sgd(student))
    initialize([linear_net(), linear_net()])


def an_optimizer_of_a_head_on_a_frozen_model():
    initialize(linear_net().requires_grad_(False), sgd(linear_net()), opt_level="O1")


def a_float64_model(level: str):
    net = linear_net().double()
    initialize(net, sgd(net), opt_level=level)


def an_unknown_level():
    initialize(linear_net(), opt_level="O7")


def a_lower_case_level():
    initialize(linear_net(), opt_level="o1")


def a_number_for_a_level():
    initialize(linear_net(), opt_level=2)


def option(name: str, value: object, level: str = "O2") -> Callable:
    def program():
        net = linear_net()
        initialize(net, sgd(net), opt_level=level, **{name: value})

    return program


def unknown_option():
    torchamp.Amp(linear_net(), None, "O2", loss_scales=1.0)


# scale_loss.


def scale_of_a_foreign_optimizer():
    made()
    amp.scale_loss(torch.ones(()), sgd(linear_net()))


def scale_for_two_sessions():
    amp.scale_loss(torch.ones(()), [made()[1], made()[1]])


def loss_id_too_large():
    amp.scale_loss(torch.ones(()), made()[1], loss_id=1)


def negative_loss_id():
    amp.scale_loss(torch.ones(()), made()[1], loss_id=-1)


def scale_in_scale():
    net, optimizer = made()
    with amp.scale_loss(loss_of(net), optimizer):
        with amp.scale_loss(loss_of(net), optimizer):
            pass


def loss(value: object) -> Callable:
    def program():
        with amp.scale_loss(value, made()[1]):
            pass

    return program


def the_loss_and_the_optimizer_swapped():
    net, optimizer = made()
    amp.scale_loss(optimizer, loss_of(net))


def a_policy_for_a_part():
    net, optimizer = made()
    amp.set_policy(net[0], "float32")


def scale_for_a_number():
    amp.clip_grad_norm_(1.0, 1.0)


def the_unscaled_loss(level: str):
    net, optimizer = made(level)
    loss = loss_of(net)
    with amp.scale_loss(loss, optimizer):
        loss.backward()


def a_part_of_the_scaled_loss():
    net, optimizer = made()
    with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
        half_of(scaled_loss).backward()
    optimizer.step()


def grad_of_the_scaled_loss():
    net, optimizer = made("O1")
    params = list(net.parameters())
    with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
        grads = torch.autograd.grad(scaled_loss, params)
        for param, grad in zip(params, grads):
            param.grad = grad
    optimizer.step()


def no_backward_in_the_block():
    net, optimizer = made()
    with amp.scale_loss(loss_of(net), optimizer):
        pass


def step_in_the_block(level: str):
    net, optimizer = made(level)
    with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
        scaled_loss.backward()
        optimizer.step()


def clip_in_the_block():
    net, optimizer = made()
    with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
        scaled_loss.backward()
        amp.clip_grad_norm_(optimizer, 1.0)


def clip_values_in_the_block():
    net, optimizer = made()
    with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
        scaled_loss.backward()
        amp.clip_grad_value_(optimizer, 1.0)


def step_on_delayed_grads():
    net, optimizer = made()
    backward(net, optimizer, delay_unscale=True)
    optimizer.step()


# The step.


def step_without_a_backward(level: str):
    made(level)[1].step()


def two_steps_after_one_backward():
    net, optimizer = made()
    backward(net, optimizer)
    optimizer.step()
    optimizer.step()


def a_second_optimizer():
    net, optimizer = made("O2", fused)
    second = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        backward(net, optimizer)
        second.step()


def many_steps_without_a_backward():
    _, optimizer = made()
    for _ in range(3):
        optimizer.step()


def backward_without_scale_loss(level: str, make=sgd):
    net, optimizer = made(level, make)
    loss_of(net).backward()
    optimizer.step()


def backward_without_scale_loss_with_batch_norm():
    net, optimizer = made("O2", model=Net())
    loss_of(net).backward()
    optimizer.step()


def step_after_an_overflow():
    net, optimizer = made("O2", loss_scale="dynamic")
    with amp.scale_loss(loss_of(net) * math.inf, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()


def a_closure():
    net, optimizer = made()
    optimizer.step(lambda: loss_of(net))


def a_closure_at_o0():
    net, optimizer = made("O0", loss_scale=1.0)

    def closure() -> torch.Tensor:
        loss = loss_of(net)
        loss.backward()
        return loss

    optimizer.step(closure)


def clip_the_model_s_grads(make: Callable):
    net, optimizer = made("O2", make)
    backward(net, optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()


def clip_the_masters_grads():
    net, optimizer = made()
    backward(net, optimizer)
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.1)
    optimizer.step()


def write_data_of_the_masters_grads():
    net, optimizer = made()
    backward(net, optimizer)
    before = [param.detach().clone() for param in amp.master_params(optimizer)]
    for param in amp.master_params(optimizer):
        param.grad.data.zero_()
    optimizer.step()
    assert all(map(torch.equal, before, amp.master_params(optimizer)))


def an_optimizer_not_given(level: str, zeroes: Callable | None = None, make=sgd, loss_scale=1024.0):
    nets = [linear_net(), linear_net()]
    both = [make(net) for net in nets]
    initialize(nets, both, opt_level=level, loss_scale=loss_scale)
    loss = loss_of(nets[0]) + loss_of(nets[1])
    with amp.scale_loss(loss, both[0]) as scaled_loss:
        scaled_loss.backward()
    both[0].step()
    if zeroes is not None:
        zeroes(nets[1], both[1])
        with amp.scale_loss(loss_of(nets[1]), both[1]) as scaled_loss:
            scaled_loss.backward()
    both[1].step()


def grads_added_to_delayed_ones():
    nets = [linear_net(), linear_net()]
    both = [sgd(net) for net in nets]
    initialize(nets, both, opt_level="O1", loss_scale=1024.0, num_losses=2)
    for given, loss_id, delays in ((both, 1, True), (both[0], 0, False), (both, 0, False)):
        loss = loss_of(nets[0]) + loss_of(nets[1])
        with amp.scale_loss(loss, given, loss_id, delay_unscale=delays) as scaled_loss:
            scaled_loss.backward()
    both[1].step()


def clip_for_an_optimizer_not_given(level: str, clip: Callable):
    nets = [linear_net(), linear_net()]
    both = [sgd(net) for net in nets]
    initialize(nets, both, opt_level=level, loss_scale=1024.0)
    with amp.scale_loss(loss_of(nets[0]) + loss_of(nets[1]), both[0]) as scaled_loss:
        scaled_loss.backward()
    clip(both, 1.0)
    both[0].step()


def the_optimizer_of_another_initialize(zeroes: Callable | None = None, loss_scale=1024.0):
    net, own = made("O1", loss_scale=loss_scale)
    _, other = made("O1", loss_scale=loss_scale)
    with amp.scale_loss(loss_of(net), other) as scaled_loss:
        scaled_loss.backward()
    if zeroes is not None:
        zeroes(net, own)
    backward(net, own)
    own.step()


def grads_added_to_those_of_another(level: str):
    an_optimizer_not_given(level, zeroes=lambda net, optimizer: None)


def unscaled_by_hand():
    def unscale(net, optimizer):
        for param in net.parameters():
            param.grad /= 1024.0

    an_optimizer_not_given("O1", unscale)


def a_group_with_known_parameters():
    net, optimizer = made()
    optimizer.add_param_group({"params": [net[0].weight]})


# State.


def model_half_after_initialize():
    net, optimizer = made("O5")
    backward(net, optimizer)
    net.half()
    optimizer.step()


def load_with_assign():
    net, _ = made()
    net.load_state_dict(linear_net().state_dict(), assign=True)


def load_another_level():
    net, optimizer = made("O1")
    saved = amp.state_dict()
    net, optimizer = made("O2")
    amp.load_state_dict(saved)


def load_something_else():
    net, optimizer = made()
    amp.load_state_dict({"model": 1})


def load_a_truncated_dict():
    net, optimizer = made()
    amp.load_state_dict({"loss_scaler0": {"unskipped": 1}})


def load_two_losses():
    net, optimizer = made(num_losses=2)
    saved = amp.state_dict()
    net, optimizer = made()
    amp.load_state_dict(saved)


def cast_a_model_in_training():
    amp.cast_for_inference(made()[0], torch.float16)


def cast_to_an_integer():
    amp.cast_for_inference(linear_net(), torch.int32)


def accumulate_in_a_number():
    amp.accumulate_weight_grads(3)


def register_no_function():
    amp.register_half_function(torch, "no_such_function")


def sigmoid_and_bce():
    net, optimizer = made("O1")
    probabilities = torch.sigmoid(net(torch.ones(2, 4))).half()
    nn.functional.binary_cross_entropy(probabilities, torch.zeros(2, 3).half())


def telemetry_of_another():
    amp.telemetry(sgd(linear_net()))


def fused_out_of_range():
    optimizers.FusedAdam(linear_net().parameters(), lr=-1.0)


def fused_state_in_half():
    optimizers.FusedAdam(linear_net().parameters(), state_dtype=torch.float16)


# The end of a scale_loss, and of training.


def backward_after_the_block(level: str):
    net, optimizer = made(level)
    with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
        pass
    scaled_loss.backward()


def backward_in_the_block_and_after_it():
    net, optimizer = made("O1")
    with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
        scaled_loss.backward(retain_graph=True)
    scaled_loss.backward()


def backward_after_an_exception():
    net, optimizer = made()
    try:
        with amp.scale_loss(loss_of(net), optimizer) as scaled_loss:
            raise KeyError
    except KeyError:
        scaled_loss.backward()


def release_in_the_block():
    net, optimizer = made()
    with amp.scale_loss(loss_of(net), optimizer):
        amp.release(net)


def release_of_a_wrapper():
    amp.release(torch.nn.Sequential(made()[0]))


def release_of_two_sessions():
    amp.release([made()[0], made()[0]])


def scale_after_the_release():
    net, optimizer = made()
    amp.release(net)
    amp.scale_loss(loss_of(net), optimizer)


def clip(bound: object, function: Callable = amp.clip_grad_norm_):
    def program():
        net, optimizer = made()
        backward(net, optimizer)
        function(optimizer, bound)

    return program


def a_word_for_a_loss_id():
    net, optimizer = made()
    amp.scale_loss(loss_of(net), optimizer, loss_id="0")


def clip_for_a_plain_optimizer():
    amp.clip_grad_norm_(sgd(linear_net()), 1.0)


def save_into_a_missing_folder():
    torchamp.Amp(linear_net(), opt_level="O2", verbosity=0).save("/missing/run.pt")


def load_no_archive():
    torchamp.Amp(linear_net(), opt_level="O2", verbosity=0).load(io.BytesIO(b"abc"))


def load_a_plain_state_dict():
    file = io.BytesIO()
    torch.save(linear_net().state_dict(), file)
    file.seek(0)
    torchamp.Amp(linear_net(), opt_level="O2", verbosity=0).load(file)


# GradScaler and ops.


def torchs_scaler_for_a_fused_optimizer_of_amp():
    net, optimizer = made("O0", fused)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(net)).backward()
    scaler.step(optimizer)


def scaler_for_an_optimizer_of_amp():
    net, optimizer = made()
    amp.GradScaler("cpu").step(optimizer)


def a_closure_for_a_scaler():
    amp.GradScaler("cpu").step(sgd(linear_net()), lambda: None)


def scale_a_word():
    amp.GradScaler("cpu").scale("loss")


def outputs_that_overlap():
    values = torch.arange(4.0)
    ops.copy_cast([values[:3]], [values[1:]])


def sparse_grads_for_a_fused_step():
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = optimizers.FusedSGD(embedding.parameters(), 0.1)
    embedding(torch.tensor([1])).sum().backward()
    optimizer.step()


def nesterov_without_momentum():
    optimizers.FusedSGD(linear_net().parameters(), 0.1, nesterov=True)


A_LOSS = "^scale_loss: expected loss to be a floating-point tensor, got "
A_POLICY = (
    "^set_policy: expected a module before initialize, got one of a model that initialize "
    r"returned; call set_policy first, or amp.release\(model\)$"
)
ERRORS = (
    (lambda: backward_after_the_block("O1"), RuntimeError, "before the end of its scale_loss"),
    (lambda: backward_after_the_block("O2"), RuntimeError, "before the end of its scale_loss"),
    (backward_in_the_block_and_after_it, RuntimeError, "before the end of its scale_loss"),
    (backward_after_an_exception, RuntimeError, "before the end of its scale_loss"),
    (release_in_the_block, RuntimeError, "no scale_loss to be open"),
    (release_of_a_wrapper, RuntimeError, "to be a model that initialize returned"),
    (release_of_two_sessions, RuntimeError, "to come from the same initialize"),
    (scale_after_the_release, RuntimeError, "to be an optimizer that initialize returned"),
    (clip(-1.0), ValueError, "max_norm to be at least 0"),
    (clip(math.nan), ValueError, "max_norm to be at least 0"),
    (clip("1"), TypeError, "max_norm to be a number"),
    (clip(-1.0, amp.clip_grad_value_), ValueError, "clip_value to be at least 0"),
    (clip_for_a_plain_optimizer, RuntimeError, "to be an optimizer that initialize returned"),
    (a_word_for_a_loss_id, TypeError, "loss_id to be an integer"),
    (save_into_a_missing_folder, RuntimeError, "amp.save: expected '/missing/run.pt' to be"),
    (load_no_archive, RuntimeError, "to be a file that amp.save wrote"),
    (load_a_plain_state_dict, RuntimeError, "model.load_state_dict takes it"),
    (scaler_for_an_optimizer_of_amp, RuntimeError, "use scale_loss, or do not call initialize"),
    (torchs_scaler_for_a_fused_optimizer_of_amp, RuntimeError, "expected grads unscaled by scale"),
    (a_closure_for_a_scaler, RuntimeError, "expected no closure"),
    (scale_a_word, ValueError, "outputs to be a tensor"),
    (outputs_that_overlap, RuntimeError, "share no memory with it"),
    (sparse_grads_for_a_fused_step, TypeError, "to be dense"),
    (nesterov_without_momentum, ValueError, "a positive momentum"),
    (option("min_loss_scale", "1"), TypeError, "min_loss_scale to be a number"),
    (option("min_loss_scale", math.nan), ValueError, "min_scale to be between 0 and max_scale"),
    (option("min_loss_scale", 2.0**25), ValueError, "min_scale to be between 0 and max_scale"),
    (option("max_loss_scale", 0.0), ValueError, "scale to be positive"),
    (option("max_consecutive_skips", 0), ValueError, "max_consecutive_skips to be at least 1"),
    (option("max_consecutive_skips", "3"), TypeError, "max_consecutive_skips to be an integer"),
    (option("verbosity", "loud"), TypeError, "verbosity to be an integer"),
    (option("materialize_master_grads", "no"), TypeError, "grads to be True or False"),
    (option("cast_model_type", torch.int32), TypeError, "to be a floating dtype"),
    (option("cast_model_type", torch.float8_e4m3fn), TypeError, "16 bits or more, got Float8_e4m3"),
    (option("cast_model_outputs", torch.int32), TypeError, "to be a floating dtype"),
    (a_tuple_of_models, TypeError, r"models.*got tuple; pass a list"),
    (no_model, TypeError, "expected models to be a torch.nn.Module"),
    (optimizer_for_a_model, TypeError, "expected models to be a torch.nn.Module"),
    (a_generator_of_optimizers, TypeError, "expected optimizers to be a torch.optim.Optimizer"),
    (a_half_model, RuntimeError, "remove the call of half"),
    (a_wrapped_model, RuntimeError, "initialize first, then wrap"),
    (a_scripted_model, TypeError, "initialize first, then trace"),
    (a_lazy_model, RuntimeError, "run a forward first"),
    (the_model_twice, RuntimeError, "not to be initialized already"),
    (the_optimizer_twice, RuntimeError, "not to be initialized already"),
    (one_optimizer_in_two_places, ValueError, "each optimizer once"),
    (an_optimizer_of_another_model, ValueError, "to have parameters of models"),
    (an_optimizer_of_a_copy, ValueError, "to have parameters of models"),
    (an_unknown_level, RuntimeError, "O7"),
    (a_lower_case_level, RuntimeError, "o1"),
    (a_number_for_a_level, RuntimeError, "2"),
    (option("master_weights", "False"), TypeError, "master_weights to be True or False"),
    (option("patch_torch_functions", "no", "O1"), TypeError, "patch_torch_functions to be True or"),
    (option("adopt_data_writes", "yes"), TypeError, "adopt_data_writes to be True or False"),
    (option("keep_batchnorm_fp32", "yes"), AssertionError, "keep_batchnorm_fp32 to be True"),
    (option("cast_model_type", "half"), TypeError, "cast_model_type to be a torch.dtype"),
    (option("cast_model_outputs", "half"), TypeError, "cast_model_outputs to be a torch.dtype"),
    (option("loss_scale", "large"), ValueError, "loss_scale"),
    (option("loss_scale", [1.0]), TypeError, "loss_scale to be 'dynamic' or a number"),
    (option("loss_scale", -1.0), ValueError, "loss_scale"),
    (option("loss_scale", math.nan), ValueError, "loss_scale"),
    (option("num_losses", 0), ValueError, "num_losses"),
    (option("num_losses", "2"), TypeError, "num_losses to be an integer"),
    (unknown_option, TypeError, "loss_scales"),
    (scale_of_a_foreign_optimizer, RuntimeError, "to be an optimizer that initialize returned"),
    (scale_for_two_sessions, RuntimeError, "the same initialize"),
    (loss_id_too_large, IndexError, "loss_id to be below num_losses"),
    (negative_loss_id, IndexError, "loss_id to be below num_losses"),
    (scale_in_scale, RuntimeError, "not to be inside an open scale_loss"),
    (loss(1.0), TypeError, A_LOSS + "a float$"),
    (loss(None), TypeError, A_LOSS + "a NoneType$"),
    (loss([torch.ones(())]), TypeError, A_LOSS + "a list$"),
    (
        loss(torch.ones((), dtype=torch.int64)),
        TypeError,
        "^scale_loss: expected loss to be a floating-point tensor, got CPULongType$",
    ),
    (
        the_loss_and_the_optimizer_swapped,
        TypeError,
        "^scale_loss: expected optimizers to be one of them or a list, got a Tensor$",
    ),
    (
        scale_for_a_number,
        TypeError,
        "^clip_grad_norm_: expected optimizers to be one of them or a list, got a float$",
    ),
    (
        option("loss_scale", True),
        TypeError,
        "^initialize: expected loss_scale to be 'dynamic' or a number, got True$",
    ),
    (
        lambda: initialize(linear_net(), enabled=None),
        TypeError,
        "^initialize: expected enabled, the third argument, to be True or False, got None$",
    ),
    (
        lambda: made("O2", lambda net: torch.optim.LBFGS(net.parameters())),
        ValueError,
        r"^initialize: expected optimizers\[0\] to step without a closure at opt_level O2, got "
        "LBFGS, which needs one; take O0 or O4$",
    ),
    (lambda: amp.set_policy(made()[0], "float32"), RuntimeError, A_POLICY),
    (a_policy_for_a_part, RuntimeError, A_POLICY),
    (lambda: the_unscaled_loss("O1"), RuntimeError, "call scaled_loss.backward"),
    (lambda: the_unscaled_loss("O2"), RuntimeError, "call scaled_loss.backward"),
    (lambda: step_in_the_block("O1"), RuntimeError, "not to be inside an open scale_loss"),
    (lambda: step_in_the_block("O2"), RuntimeError, "not to be inside an open scale_loss"),
    (clip_in_the_block, RuntimeError, "clip_grad_norm_: expected unscaled grads"),
    (clip_values_in_the_block, RuntimeError, "clip_grad_value_: expected unscaled grads"),
    (step_on_delayed_grads, RuntimeError, "delay_unscale, as in no_sync"),
    (a_closure, RuntimeError, "step: expected no closure"),
    (lambda: clip_the_model_s_grads(fused), RuntimeError, "clip with amp.clip_grad_norm_"),
    (the_optimizer_of_another_initialize, RuntimeError, "give it all optimizers"),
    (lambda: an_optimizer_not_given("O1"), RuntimeError, "give it all optimizers"),
    (lambda: an_optimizer_not_given("O2"), RuntimeError, "give it all optimizers"),
    (lambda: an_optimizer_not_given("O1", make=fused), RuntimeError, "give it all optimizers"),
    (lambda: grads_added_to_those_of_another("O1"), RuntimeError, "give it all optimizers"),
    (grads_added_to_delayed_ones, RuntimeError, "give it all optimizers"),
    (
        lambda: clip_for_an_optimizer_not_given("O1", amp.clip_grad_norm_),
        RuntimeError,
        "^clip_grad_norm_: expected grads of backwards in .* give it all optimizers",
    ),
    (
        lambda: clip_for_an_optimizer_not_given("O1", amp.clip_grad_value_),
        RuntimeError,
        "^clip_grad_value_: expected grads of backwards in .* give it all optimizers",
    ),
    (a_group_with_known_parameters, ValueError, "."),
    (model_half_after_initialize, RuntimeError, "to hold BFloat16"),
    (load_with_assign, RuntimeError, "assign=False"),
    (load_another_level, RuntimeError, "a checkpoint of opt_level O2, got one of O1"),
    (load_something_else, RuntimeError, "expected keys loss_scaler0"),
    (load_a_truncated_dict, RuntimeError, "it is truncated"),
    (load_two_losses, RuntimeError, "a checkpoint of 1 losses"),
    (cast_a_model_in_training, RuntimeError, "cast a copy.deepcopy"),
    (cast_to_an_integer, TypeError, "dtype to be floating"),
    (accumulate_in_a_number, TypeError, "model to be an nn.Module"),
    (register_no_function, ValueError, "the name of a function"),
    (sigmoid_and_bce, NotImplementedError, "binary_cross_entropy_with_logits"),
    (telemetry_of_another, RuntimeError, "to be an optimizer that initialize returned"),
    (fused_out_of_range, ValueError, "lr to be at least 0"),
    (fused_state_in_half, ValueError, "state_dtype to be torch.float32 or torch.bfloat16"),
)
SECOND = re.escape(
    "zero_grad: expected the model to be written by the optimizer that initialize returned, got "
    "writes after a backward whose grads no step has used; these grads are scaled. If a second "
    "optimizer steps the model, make one optimizer of both, with two groups; if the program uses "
    "the grads itself, set materialize_master_grads to true"
)
TEACHER = re.escape(
    "initialize: expected an optimizer to step models[1], got a model like models[0] that none "
    "steps; if it averages models[0], its averages stall in 16 bits: leave it out and use "
    "amp.AveragedModel; if its weights stay as they are, leave it out and use "
    "amp.cast_for_inference"
)
WARNINGS = (
    (one_optimizer_of_another_model, r"optimizers\[1\] to have parameters of models"),
    (a_teacher, TEACHER),
    (lambda: a_teacher("O3"), TEACHER),
    (lambda: a_teacher("O5"), TEACHER),
    (lambda: a_float64_model("O0"), "float64; it is rounded to torch.float32"),
    (lambda: a_float64_model("O2"), "float64; it is rounded to torch.float16"),
    (lambda: step_without_a_backward("O1"), "step: expected grads, got none"),
    (lambda: step_without_a_backward("O2"), "step: expected grads, got none"),
    (two_steps_after_one_backward, "step: expected grads, got none"),
    (many_steps_without_a_backward, "step: expected grads, got none"),
    (a_second_optimizer, SECOND),
)
RIGHT = (
    lambda: clip_for_an_optimizer_not_given("O2", amp.clip_grad_norm_),
    an_optimizer_of_a_head_on_a_frozen_model,
    lambda: a_teacher("O0"),
    lambda: a_teacher("O1"),
    a_teacher_that_stays_as_it_is,
    lambda: an_average_of_the_student("O2"),
    lambda: an_average_of_the_student("O5"),
    models_that_no_optimizer_steps,
    lambda: a_float64_model("O1"),
    option("keep_batchnorm_fp32", "True"),
    a_part_of_the_scaled_loss,
    grad_of_the_scaled_loss,
    no_backward_in_the_block,
    lambda: backward_without_scale_loss("O0"),
    lambda: backward_without_scale_loss("O1"),
    lambda: backward_without_scale_loss("O2"),
    lambda: backward_without_scale_loss("O2", fused),
    lambda: backward_without_scale_loss("O5"),
    backward_without_scale_loss_with_batch_norm,
    lambda: clip_the_model_s_grads(sgd),
    lambda: clip_the_model_s_grads(adam),
    step_after_an_overflow,
    a_closure_at_o0,
    clip_the_masters_grads,
    write_data_of_the_masters_grads,
    lambda: an_optimizer_not_given("O1", loss_scale=1.0),
    lambda: an_optimizer_not_given("O1", lambda net, optimizer: net.zero_grad()),
    lambda: an_optimizer_not_given("O1", lambda net, optimizer: optimizer.zero_grad()),
    lambda: an_optimizer_not_given("O1", lambda net, _: net.zero_grad(set_to_none=False)),
    lambda: an_optimizer_not_given("O2", lambda net, optimizer: net.zero_grad()),
    lambda: an_optimizer_not_given("O2", lambda net, optimizer: None),
    lambda: the_optimizer_of_another_initialize(lambda net, _: net.zero_grad()),
    lambda: the_optimizer_of_another_initialize(lambda _, optimizer: optimizer.zero_grad()),
    lambda: the_optimizer_of_another_initialize(loss_scale=1.0),
    unscaled_by_hand,
)


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None) if callable(value) else None


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


@pytest.mark.parametrize("program, error, words", ERRORS, ids=name_of)
def test_is_refused(program, error, words):
    with pytest.raises(error, match=words):
        program()


@pytest.mark.parametrize("program, words", WARNINGS, ids=name_of)
def test_warns_once(program, words):
    with pytest.warns(UserWarning, match=words) as caught:
        warnings.simplefilter("always")
        program()
    assert len(caught) == 1


@pytest.mark.parametrize("program", RIGHT, ids=name_of)
def test_is_right(program):
    program()

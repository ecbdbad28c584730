"""What a program gets for using torchamp wrongly: an error where it is certainly wrong, one warning
where it may be meant, the right result where there is one. The mistakes that C++ has too are in
support/languages/mistakes.py; first and second arguments of wrong types in test_wrong_types.py."""

from __future__ import annotations

import copy
import io
import re
import warnings
from collections.abc import Callable

import pytest
import torch
from nets import Net, backward, file_by, fused_adam, initialized, linear_net, loss_of, sgd
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchamp
from torchamp import amp, ops, optimizers


def made(level: str = "O2", optimizer=sgd, model: nn.Module | None = None, **options):
    options = {"loss_scale": 1024.0, **options}
    return initialized(level, linear_net() if model is None else model, optimizer, **options)


def initialize(*arguments, **options):
    return amp.initialize(*arguments, **{"opt_level": "O2", "verbosity": 0, **options})


def of_a_net(use: Callable) -> Callable:
    return lambda: use(linear_net())


def in_training(use: Callable) -> Callable:
    """A use of a net and its optimizer."""
    return lambda: use(*made())


# Wrong arguments of initialize.


def a_scripted_model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch calls it deprecated
        net = torch.jit.trace(linear_net(), torch.zeros(1, 4))
    initialize(net, sgd(net))


def one_optimizer_in_two_places():
    net = linear_net()
    optimizer = sgd(net)
    try:
        initialize(net, [optimizer, optimizer])
    finally:
        assert net[0].weight.dtype == torch.float32


def a_teacher(level: str = "O2"):
    student = linear_net()
    initialize([student, copy.deepcopy(student)], sgd(student), opt_level=level)


def a_teacher_that_stays_as_it_is():
    student, _ = made("O2")
    teacher = amp.cast_for_inference(linear_net(), torch.float16)
    assert teacher(torch.ones(1, 4)).dtype == student(torch.ones(1, 4)).dtype


def models_that_no_optimizer_steps():
    """Features of a loss, and inference."""
    student = linear_net()
    initialize([student, Net().requires_grad_(False)], sgd(student))
    initialize([linear_net(), linear_net()])


def a_zero_redundancy_optimizer():
    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    net = linear_net()
    initialize(net, ZeroRedundancyOptimizer(net.parameters(), 0.1))


def a_model_of_inference_mode():
    with torch.inference_mode():
        net = linear_net()
    initialize(net, sgd(net))


def stochastic_rounding(level: str = "O5", **options):
    net = linear_net()
    sgd = optimizers.FusedSGD(net.parameters(), 0.1, stochastic_rounding=True)
    initialize(net, sgd, opt_level=level, **options)


def option(name: str, value: object) -> Callable:
    def program():
        net = linear_net()
        initialize(net, sgd(net), **{name: value})

    return program


def average(model: nn.Module, **options):
    return amp.AveragedModel(model, **options)


def a_loss_beside_the_model():
    """One without parameters, and one that trains, in any order."""
    net, trained = linear_net(), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *trained.parameters()], 0.1)
    initialize([nn.MSELoss(), net, trained], optimizer)
    frozen = nn.Linear(3, 1).requires_grad_(False)
    initialize(frozen, torch.optim.SGD([nn.Parameter(torch.ones(3))], 0.1))
    initialize([], sgd(linear_net()), enabled=False)
    initialize([], sgd(linear_net()), opt_level="O0")
    initialize(nn.MSELoss(), sgd(linear_net()), opt_level="O0", loss_scale=2.0)


# The loop.


def loss(value: object) -> Callable:
    def program():
        with amp.scale_loss(value, made()[1]):
            pass

    return program


def clip_the_parameters(clip: Callable = amp.clip_grad_norm_, **options):
    net, optimizer = made(**options)
    backward(net, optimizer)
    clip(net.parameters(), 1.0)


def the_model_for_the_optimizer(use: Callable, *arguments: object) -> Callable:
    return lambda: use(made()[0], *arguments)


def a_second_optimizer():
    net, optimizer = made("O2", fused_adam)
    second = torch.optim.SGD(net.parameters(), 0.1)
    for seed in range(2):
        master = net.state_dict()["0.weight"].clone()
        optimizer.zero_grad()
        backward(net, optimizer, seed)
        second.step()
        assert torch.equal(net.state_dict()["0.weight"], master - 0.1 * net[0].weight.grad)


def clip_the_model_s_scaled_grads():
    net, optimizer = made("O2", fused_adam, materialize_master_grads=False)
    backward(net, optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()


# State.


def model_half_after_initialize():
    net, optimizer = made("O5")
    backward(net, optimizer)
    net.half()
    optimizer.step()


def cast_after_initialize(level: str, cast: Callable) -> Callable:
    def program():
        net, optimizer = made(level)
        backward(net, optimizer)
        cast(net)
        grad = None if net[0].weight.grad is None else net[0].weight.grad.clone()
        try:
            backward(net, optimizer)
        finally:
            assert torch.equal(net[0].weight.grad, grad)

    return program


def cast_a_frozen_part():
    """And train what was cast before initialize, and cast after the training."""
    net = linear_net()
    net[0].requires_grad_(False)
    net, optimizer = made("O4", model=net)
    net[0].bfloat16()
    backward(net, optimizer)
    net.bfloat16().eval()
    amp.release(net)
    made("O4", model=linear_net().bfloat16())


def load_another_level():
    net, optimizer = made("O1")
    saved = amp.state_dict()
    net, optimizer = made("O2")
    amp.load_state_dict(saved)


def load_a_plain_state_dict():
    file = file_by(lambda file: torch.save(linear_net().state_dict(), file))
    torchamp.Amp(linear_net(), opt_level="O2", verbosity=0).load(file)


# Code that messages tell to write.


def another_rule():
    net = linear_net()
    owner = torchamp.Amp(net, sgd(net), "O2", verbosity=0)
    owner.loss_scalers[0].rule = ops.ScaleRule(
        growth_interval=1, growth_factor=4.0, backoff_factor=0.25
    )
    owner.scale_loss(loss_of(net)).backward()
    assert owner.state_dict()["loss_scaler0"]["loss_scale"] == 4 * 65536.0
    rule = torchamp.LossScaler(rule=ops.ScaleRule(growth_interval=5)).rule
    assert rule.growth_interval == 5


def another_first_scale():
    net, optimizer = made(loss_scale="dynamic")
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 0}})
    assert amp.scale(torch.ones(())).item() == 1024.0


def options_of_others():
    net, optimizer = made(min_loss_scale=1.0, max_loss_scale=1024.0)
    backward(net, optimizer, loss_id=0, delay_overflow_check=True, delay_unscale=True)
    backward(net, optimizer, loss_id=0, delay_unscale=False)
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    averaged = average(net, multi_avg_fn=decay)
    for _ in range(2):
        averaged.update_parameters(net)
    with torch.no_grad():
        net[2].bias.add_(1.0)
    before = averaged.module[2].bias.clone()
    averaged.update_parameters(net)
    torch.testing.assert_close(averaged.module[2].bias, before + 0.5, atol=1e-3, rtol=0)
    with amp.autocast("cpu", dtype=torch.bfloat16):
        assert linear_net()(torch.ones(1, 4)).dtype == torch.bfloat16


# An Amp after its end.


def closed(use: Callable, level: str = "O1") -> Callable:
    def program():
        net = linear_net()
        with torchamp.Amp(net, sgd(net), level, verbosity=0) as owner:
            pass
        use(owner)

    return program


def released(use: Callable) -> Callable:
    def program():
        net = linear_net()
        owner = torchamp.Amp(net, sgd(net), "O2", verbosity=0)
        owner.release()
        use(owner)

    return program


def train_with(owner: torchamp.Amp):
    with torch.no_grad():
        loss = loss_of(owner.models[0])
    owner.scale_loss(loss)


def train_in_float32(owner: torchamp.Amp):
    for _ in range(2):
        loss_of(owner.models[0]).backward()


def use_what_is_closed(owner: torchamp.Amp):
    with torch.no_grad():
        assert loss_of(owner.models[0]).dtype == torch.float32
    owner.save(io.BytesIO())
    owner.load_state_dict(owner.state_dict())
    assert len(list(owner.master_params())) == 4


# Tools.


def given_a_batch(tool: Callable, batch: object) -> Callable:
    return lambda: tool(linear_net(), batch=batch)


# GradScaler and ops.


def torchs_scaler_for_a_fused_optimizer_of_amp():
    net, optimizer = made("O0", fused_adam)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(net)).backward()
    scaler.step(optimizer)


A_STRANGER = (
    "expected optimizers[0] to be an optimizer that initialize returned, "
    "got an SGD that it did not; pass it to initialize with its model"
)
A_POLICY = (
    "set_policy: expected a module before initialize, got one of a model that "
    "initialize returned; call set_policy first, or amp.release(model)"
)
RELEASED = (
    "expected models in training, got those of an initialize that was released; use what "
    "initialize was given, or initialize it again"
)
CLOSED = (
    "expected an open Amp, got one that close() has ended, whose models compute in float32; close "
    "it after training"
)
TEACHER = (
    "initialize: expected an optimizer to step models[1], got a model like models[0] "
    "that none steps; if it averages models[0], its averages stall in 16 bits: leave "
    "it out and use AveragedModel; if its weights stay as they are, leave it out and "
    "use cast_for_inference"
)
UNEXPECTED = "initialize() got an unexpected keyword argument"
A_RULE = "assign an ops.ScaleRule to torchamp.Amp(…).loss_scalers[0].rule"
A_FIRST_SCALE = "write amp.load_state_dict({'loss_scaler0': {'loss_scale': …, 'unskipped': 0}})"
A_MODEL = (
    "expected optimizers[0] to be a torch.optim.Optimizer, got a Sequential; pass the optimizer "
    "that trains it"
)
AN_OBJECT = "pass an object of it"
ITSELF = "pass the optimizer itself"
THE_MODEL = A_MODEL.replace("optimizers[0]", "optimizer")
A_PARAMETER = A_MODEL.replace("Sequential", "Parameter")
A_DESTINATION = (
    "expected to to be a path, a SummaryWriter or a function of values and the keyword argument "
    "step"
)
A_LOSS = "preflight: expected loss_fn to be a function of the model's output alone"
OF_THE_OUTPUT = "write lambda output: loss_fn(output, target)"
A_BATCH = "expected batch to be what the model is called with"
WITHOUT_THE_TARGET = "leave out what its forward does not take, such as the target"
LOADER = DataLoader(TensorDataset(torch.ones(4, 4), torch.zeros(4)), batch_size=2)
#: Options of initialize: the name, a value, the error, and its words after the name.
OPTIONS = (
    ("adopt_data_writes", "yes", TypeError, "to be True or False, got 'yes'"),
    ("cast_model_outputs", torch.int32, TypeError, "to be a floating dtype, got torch.int32"),
    ("cast_model_outputs", "half", TypeError, "to be a torch.dtype, got 'half'"),
    ("cast_model_type", "half", TypeError, "to be a torch.dtype, got 'half'"),
    (
        "keep_batchnorm_fp32",
        "yes",
        AssertionError,
        "to be True, False, 'True' or 'False', got 'yes'",
    ),
    ("loss_scale", [1.0], TypeError, "to be 'dynamic' or a number, got [1.0]"),
    ("loss_scale", True, TypeError, "to be 'dynamic' or a number, got True"),
    ("loss_scale", torch.ones(2), TypeError, "to be 'dynamic' or a number, got tensor([1., 1.])"),
    ("master_weights", "False", TypeError, "to be True or False, got 'False'"),
    ("master_weights", torch.ones(2), TypeError, "to be True or False, got tensor([1., 1.])"),
    ("materialize_master_grads", "no", TypeError, "to be True or False, got 'no'"),
    ("max_consecutive_skips", "3", TypeError, "to be an integer, got '3'"),
    ("min_loss_scale", "1", TypeError, "to be a number, got '1'"),
    ("num_losses", "2", TypeError, "to be an integer, got '2'"),
    ("patch_torch_functions", "no", TypeError, "to be True or False, got 'no'"),
    ("verbosity", "loud", TypeError, "to be an integer, got 'loud'"),
)
RUNTIME_ERRORS = (
    (
        a_model_of_inference_mode,
        "initialize: expected the parameters of optimizers[0] to be trainable, got one, of sizes "
        "[8, 4], of the inference mode; make the model outside of it",
    ),
    (
        lambda: amp.fsdp_policy("fp32"),
        'fsdp_policy: expected opt_level to be one of "O0", "O1", "O2", "O3", "O4", "O5", got '
        '"fp32"',
    ),
    (lambda: amp.clip_grad_norm_(sgd(linear_net()), 1.0), f"clip_grad_norm_: {A_STRANGER}"),
    (
        lambda: torchamp.Amp(linear_net(), opt_level="O2", verbosity=0).load("/dev/null"),
        "amp.load: expected '/dev/null' to be a file that amp.save wrote, got one that cannot be "
        "read: File is not a zip file",
    ),
    (
        load_a_plain_state_dict,
        "amp.load: expected a file that amp.save wrote, got a state dict; model.load_state_dict "
        "takes it",
    ),
    (
        lambda: amp.GradScaler("cpu").step(made()[1]),
        "step: expected an optimizer not returned by amp.initialize, which scales losses by "
        "amp.scale_loss, got one that is; use scale_loss, or do not call initialize",
    ),
    (
        torchs_scaler_for_a_fused_optimizer_of_amp,
        "step: expected grads unscaled by scale_loss, since initialize returned the optimizer, got "
        "those of a GradScaler; use scale_loss, or do not call initialize",
    ),
    (
        lambda: amp.GradScaler("cpu").step(sgd(linear_net()), lambda: None),
        "step: expected no closure, whose backward would not be scaled, got one; scale the loss "
        "and run its backward, then call step(optimizer)",
    ),
    (
        lambda: made(model=linear_net().half()),
        "initialize: expected models[0] to be a float32 model, got parameter '0.weight' in "
        "float16; initialize casts the model itself: remove the call of half(), or freeze what "
        "does not train by requires_grad_(False)",
    ),
    (
        lambda: made(model=nn.DataParallel(linear_net())),
        "initialize: expected models[0] to be an unwrapped model, got one wrapped in DataParallel; "
        "initialize first, then wrap",
    ),
    (
        lambda: initialize(nn.Sequential(nn.LazyLinear(3))),
        "initialize: expected parameter '0.weight' of models[0] to be materialized, got a lazy "
        "one; run a forward first",
    ),
    (
        in_training(lambda net, _: initialize(net, sgd(net))),
        "initialize: expected models[0] (Sequential) not to be initialized already, but it is; "
        "pass all models and optimizers that belong together to one call, or end the earlier "
        "training by amp.release(model)",
    ),
    (
        in_training(lambda _, optimizer: initialize(linear_net(), optimizer)),
        "initialize: expected optimizers[0] (SGD) not to be initialized already, but it is; "
        "amp.release(model), of its model, makes it plain again",
    ),
    (
        in_training(lambda *_: amp.scale_loss(torch.ones(()), sgd(linear_net()))),
        f"scale_loss: {A_STRANGER}",
    ),
    (lambda: amp.set_policy(made()[0], "float32"), A_POLICY),
    (in_training(lambda net, _: amp.set_policy(net[0], "float32")), A_POLICY),
    (
        clip_the_model_s_scaled_grads,
        "expected the grad of a model's parameter, of sizes [8, 4], to be unmodified since "
        "scale_loss, which with materialize_master_grads=False leaves it scaled, got a modified "
        "one; clip with amp.clip_grad_norm_, or modify the grads of amp.master_params",
    ),
    (
        model_half_after_initialize,
        "amp: expected a model parameter of sizes [8, 4] to hold BFloat16 as initialize left it, "
        "got Half. model.half(), model.float() and, in C++, torch::load replace parameters without "
        "the optimizer's knowledge: change the type before initialize, and load checkpoints by "
        "amp's load, or into the model that initialize returned",
    ),
    *(
        (
            cast_after_initialize(level, cast),
            "scale_loss: expected parameter '0.weight' to be in float32 as initialize left it, got "
            f"{dtype}; remove the call that casts the model, as model.bfloat16(), or take O2 or "
            "O5, which cast it",
        )
        for level in ("O1", "O4")
        for cast, dtype in (
            (nn.Module.bfloat16, torch.bfloat16),
            (nn.Module.half, torch.float16),
            (lambda net: net.to(torch.bfloat16), torch.bfloat16),
        )
    ),
    (
        in_training(lambda net, _: net.load_state_dict(net.state_dict(), assign=True)),
        "load_state_dict: expected assign=False for a model that initialize has cast, got True, "
        "which would replace the optimizer's parameters; load without assign, or before initialize",
    ),
    (
        load_another_level,
        "load_state_dict: expected a checkpoint of opt_level O2, got one of O1; models and "
        "optimizers load across levels, omit this dict to reset the loss scale",
    ),
    (
        in_training(lambda *_: amp.load_state_dict({"model": 1})),
        "load_state_dict: expected keys loss_scaler0, loss_scaler1, …, as amp.state_dict() gives "
        "them, got 'model'",
    ),
    (
        lambda: amp.telemetry(sgd(linear_net())),
        "telemetry: expected optimizer to be an optimizer that initialize returned, got an SGD "
        "that it did not; pass it to initialize with its model",
    ),
    (closed(train_with), f"scale_loss: {CLOSED}"),
    (closed(lambda owner: owner.scale(torch.ones(()))), f"scale: {CLOSED}"),
    (released(train_with), f"scale_loss: {RELEASED}"),
    (released(lambda owner: owner.scale(torch.ones(()))), f"scale: {RELEASED}"),
    (released(lambda owner: owner.save("net.pt")), f"save: {RELEASED}"),
    (released(lambda owner: owner.load("net.pt")), f"load: {RELEASED}"),
    (released(lambda owner: owner.refresh_masters()), f"refresh_masters: {RELEASED}"),
)
VALUE_ERRORS = (
    (
        lambda: amp.GradScaler("gpu"),
        "GradScaler: expected device to be a type of devices, as 'cuda', got 'gpu'",
    ),
    (
        lambda: amp.GradScaler("cpu", init_scale=-1),
        "GradScaler: expected init_scale to be positive and finite, got -1",
    ),
    *(
        (
            option("keep_fp32", name),
            "initialize: expected keep_fp32 to name modules or buffers in the models, or arguments "
            f"of their forward, got {name!r}{meant}",
        )
        for name, meant in (
            ("0.", "; did you mean '0'?"),
            ("head", ""),
            ("module.2", "; did you mean '2'?"),
            ("_orig_mod.2", "; did you mean '2'?"),
            ("2.weight", "; a parameter stays in float32 with its module: write '2'"),
            ("module.2.weight", "; a parameter stays in float32 with its module: write '2'"),
            ("0,2", "; write ['0', '2']"),
            ("0, 2", "; write ['0', '2']"),
            ("0, 3", ""),
            ("Linear", "; did you mean the class Linear?"),
        )
    ),
    (
        lambda: initialize(nn.Linear(4, 3), keep_fp32="weight"),
        "initialize: expected keep_fp32 to name modules or buffers in the models, or arguments of "
        "their forward, got 'weight'; a parameter stays in float32 with its module: move it into "
        "one of its own",
    ),
    (
        one_optimizer_in_two_places,
        "initialize: expected each optimizer once, got optimizers[1] (SGD) twice",
    ),
    (
        lambda: made("O2", lambda net: torch.optim.LBFGS(net.parameters()), loss_scale="dynamic"),
        "initialize: expected optimizers[0] to call its closure once at a dynamic loss scale, "
        "which skips steps, got LBFGS; give initialize a loss_scale, or take O0, O4 or O5",
    ),
    (
        lambda: amp.register_float_function(Net, "__module__"),
        "register_float_function: expected the name of a function in <class 'nets.Net'>, got "
        "'__module__'",
    ),
    *(
        (
            lambda optimizers=optimizers: initialize([], *map(sgd, optimizers)),
            "initialize: expected models to be a torch.nn.Module or a list of them, got an empty "
            "list; pass the model that is trained",
        )
        for optimizers in ([], [linear_net()])
    ),
    *(
        (
            lambda models=models, level=level: initialize(
                models(), sgd(linear_net()), opt_level=level
            ),
            f"initialize: expected models with parameters, got {words} without any; pass the model "
            "that optimizers[0] (SGD) trains",
        )
        for level in ("O1", "O2", "O5")
        for models, words in (
            (nn.MSELoss, "an MSELoss"),
            (lambda: [nn.MSELoss(), nn.ReLU()], "an MSELoss, a ReLU"),
        )
    ),
    (
        lambda: optimizers.FusedAdam(linear_net().parameters(), state_dtype=torch.float16),
        "FusedAdam: expected state_dtype to be torch.float32 or torch.bfloat16, got torch.float16",
    ),
)
TYPE_ERRORS = (
    (
        lambda: amp.GradScaler("cpu").scale("loss"),
        "scale: expected outputs to be a tensor or a list of such, got a str",
    ),
    (
        in_training(lambda _, optimizer: amp.clip_grad_norm_(optimizer, "1")),
        "clip_grad_norm_: expected max_norm to be a number, got a str",
    ),
    (
        in_training(lambda net, optimizer: amp.scale_loss(loss_of(net), optimizer, loss_id="0")),
        "scale_loss: expected loss_id to be an integer, got '0'",
    ),
    (
        lambda: initialize((linear_net(),)),
        "initialize: expected models to be a torch.nn.Module or a list of them, got a tuple; pass "
        "a list: list(...)",
    ),
    (
        of_a_net(lambda net: initialize(net, (each for each in [sgd(net)]))),
        "initialize: expected optimizers to be a torch.optim.Optimizer or a list of them, got a "
        "generator",
    ),
    *(
        (lambda use=use: use(Net), f"{words}, got the class Net; {AN_OBJECT}")
        for use, words in (
            (initialize, "initialize: expected models to be a torch.nn.Module or a list of them"),
            (
                lambda net: initialize([net]),
                "initialize: expected models[0] to be a torch.nn.Module",
            ),
            (amp.release, "release: expected models to be one of them or a list"),
            (
                lambda net: amp.preflight(net, torch.ones(2, 4)),
                "preflight: expected model to be a torch.nn.Module",
            ),
            (amp.AveragedModel, "AveragedModel: expected model to be a torch.nn.Module"),
        )
    ),
    *(
        (lambda use=use: use(torch.optim.SGD), f"{words}, got the class SGD; {AN_OBJECT}")
        for use, words in (
            (
                lambda optimizer: initialize(linear_net(), optimizer),
                "initialize: expected optimizers to be a torch.optim.Optimizer or a list of them",
            ),
            (
                lambda optimizer: amp.scale_loss(torch.ones(()), optimizer),
                "scale_loss: expected optimizers to be one of them or a list",
            ),
            (amp.master_params, "master_params: expected optimizer to be a torch.optim.Optimizer"),
            (amp.GradScaler("cpu").step, "step: expected optimizer to be a torch.optim.Optimizer"),
        )
    ),
    (
        lambda: amp.set_policy(linear_net(), int),
        "set_policy: expected policy to be a Policy or its name, got the class int",
    ),
    *(
        (lambda use=use, given=given: use(given()), f"{words}, got a {kind}; {ITSELF}")
        for use, words in (
            (amp.master_params, "master_params: expected optimizer to be a torch.optim.Optimizer"),
            (amp.telemetry, "telemetry: expected optimizer to be a torch.optim.Optimizer"),
        )
        for given, kind in (
            (lambda: linear_net().parameters(), "generator"),
            (lambda: list(linear_net().parameters()), "list"),
            (lambda: [sgd(linear_net())], "list"),
        )
    ),
    (
        a_scripted_model,
        "initialize: expected models[0] to be a Python model, got a TopLevelTracedModule; "
        "initialize first, then trace",
    ),
    (
        lambda: torchamp.Amp(linear_net(), None, "O2", loss_scales=1.0),
        "initialize() got an unexpected keyword argument 'loss_scales'; did you mean 'loss_scale'?",
    ),
    *(
        (option(name, 1.0), f"{UNEXPECTED} {name!r}; {words}")
        for names, words in (
            ("dynamic_loss_scale", "did you mean 'loss_scale'?"),
            ("keep_bn_fp32 keep_batchnorm", "did you mean 'keep_batchnorm_fp32'?"),
            ("max_scale", "did you mean 'max_loss_scale'?"),
            ("model", "did you mean 'models'?"),
            ("optimizer", "did you mean 'optimizers'?"),
            ("precision level dtype mixed_precision", "did you mean 'opt_level'?"),
            ("growth_factor backoff_factor growth_interval", A_RULE),
            ("init_scale initial_scale", A_FIRST_SCALE),
            ("loss_id delay_unscale delay_overflow_check", "give it to scale_loss"),
            ("device", "call model.to(device) before the optimizer is made"),
            ("decay", "weight_decay is the optimizer's, and AveragedModel averages"),
        )
        for name in names.split()
    ),
    (option("colour", "red"), f"{UNEXPECTED} 'colour'"),
    *(
        (
            lambda register=register: register("torch.Tensor", "join"),
            f"{register.__name__}: expected module to be a module, a class or another object, got "
            "a str; pass what it names",
        )
        for register in (
            amp.register_bfloat16_function,
            amp.register_float_function,
            amp.register_half_function,
            amp.register_promote_function,
        )
    ),
    *(
        (
            of_a_net(lambda net, part=part: initialize(net, keep_fp32=part(net))),
            "initialize: expected keep_fp32 to be names, classes of modules or functions of name "
            f"and module, got a {kind}; give names",
        )
        for part, kind in (
            (lambda net: net[2].weight, "Parameter"),
            (lambda net: [net[2].weight], "Parameter"),
            (lambda net: net.parameters(), "Parameter"),
            (lambda net: net[2], "Linear"),
            (lambda net: net, "Sequential"),
        )
    ),
    (
        lambda: torchamp.Amp(linear_net(), growth_interval=5),
        f"{UNEXPECTED} 'growth_interval'; {A_RULE}",
    ),
    *(
        (
            lambda name=name: amp.GradScaler("cpu", **{name: 1.0}),
            f"GradScaler() got an unexpected keyword argument {name!r}{words}",
        )
        for name, words in (
            ("initial_scale", "; did you mean 'init_scale'?"),
            ("scale", "; did you mean 'init_scale'?"),
            ("enable", "; did you mean 'enabled'?"),
            ("min_scale", "; initialize has min_loss_scale"),
            ("max_scale", "; initialize has max_loss_scale"),
            ("dtype", "; autocast has it"),
            ("decay", ""),
        )
    ),
    (
        lambda: amp.GradScaler("cpu", enabled="false"),
        "GradScaler: expected enabled to be True or False, got a str",
    ),
    (
        lambda: amp.LossScaleOptimizer(sgd(linear_net()), init_scale=1.0),
        "LossScaleOptimizer() got an unexpected keyword argument 'init_scale'; did you mean "
        "'initial_scale'?",
    ),
    (
        of_a_net(lambda net: average(net, decay=0.99)),
        "AveragedModel() got an unexpected keyword argument 'decay'; a decay is "
        "multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)",
    ),
    (
        of_a_net(lambda net: average(net, average_fn=None)),
        "AveragedModel() got an unexpected keyword argument 'average_fn'; did you mean 'avg_fn'?",
    ),
    (
        lambda: ops.ScaleRule(backoff=0.5),
        "ScaleRule() got an unexpected keyword argument 'backoff'; did you mean 'backoff_factor'?",
    ),
    (
        lambda: torchamp.LossScaler(growth_interval=5),
        "LossScaler() got an unexpected keyword argument 'growth_interval'; give them to "
        "rule=ops.ScaleRule(…)",
    ),
    (
        a_zero_redundancy_optimizer,
        "initialize: expected optimizers[0] to step the parameters in its param_groups, got a "
        "ZeroRedundancyOptimizer, which steps some of them on each rank; shard the model by "
        "fully_shard, and pass a plain optimizer",
    ),
    (clip_the_parameters, f"clip_grad_norm_: {A_PARAMETER}"),
    (lambda: clip_the_parameters(amp.clip_grad_value_), f"clip_grad_value_: {A_PARAMETER}"),
    (lambda: clip_the_parameters(enabled=False), f"clip_grad_norm_: {A_PARAMETER}"),
    (the_model_for_the_optimizer(amp.clip_grad_norm_, 1.0), f"clip_grad_norm_: {A_MODEL}"),
    (the_model_for_the_optimizer(amp.refresh_masters), f"refresh_masters: {A_MODEL}"),
    (the_model_for_the_optimizer(amp.finish), f"finish: {A_MODEL}"),
    (
        the_model_for_the_optimizer(lambda model: amp.scale_loss(torch.ones(()), model)),
        f"scale_loss: {A_MODEL}",
    ),
    (the_model_for_the_optimizer(amp.telemetry), f"telemetry: {THE_MODEL}"),
    (the_model_for_the_optimizer(amp.Monitor, "steps.csv"), f"Monitor: {THE_MODEL}"),
    (
        lambda: amp.Monitor(made()[1], 3),
        f"Monitor: {A_DESTINATION}, got an int",
    ),
    (
        lambda: amp.Monitor(made()[1], lambda values: None),
        f"Monitor: {A_DESTINATION}, got a function; write lambda values, step: print(step, values)",
    ),
    (
        lambda: amp.preflight(linear_net(), torch.ones(2, 4), nn.functional.cross_entropy),
        f"{A_LOSS}, got a function; {OF_THE_OUTPUT}",
    ),
    (
        lambda: amp.preflight(linear_net(), torch.ones(2, 4), nn.CrossEntropyLoss()),
        f"{A_LOSS}, got a CrossEntropyLoss; {OF_THE_OUTPUT}",
    ),
    (
        lambda: amp.preflight(linear_net(), torch.ones(2, 4), torch.zeros(2)),
        f"{A_LOSS}, got a Tensor; {OF_THE_OUTPUT}",
    ),
    *(
        (given_a_batch(tool, batch), f"{tool.__name__}: {A_BATCH}, got {words}")
        for tool in (amp.preflight, amp.report)
        for batch, words in (
            (LOADER, "a DataLoader; pass the input in one batch of it"),
            (LOADER.dataset, "a TensorDataset; pass the input in one batch of it"),
            (LOADER.dataset[:2], f"a tuple; {WITHOUT_THE_TARGET}"),
            ({"x": torch.ones(2, 4)}, f"a dict; {WITHOUT_THE_TARGET}"),
        )
    ),
    (
        lambda: amp.AveragedModel(linear_net(), 0.99),
        "AveragedModel: expected device to be a torch.device or None, got a float; a decay is "
        "multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)",
    ),
    (
        lambda: amp.GradScaler("cpu", init_scale="big"),
        "GradScaler: expected init_scale to be a number, got a str",
    ),
    (loss(1.0), "scale_loss: expected loss to be a floating-point tensor, got a float"),
    (
        in_training(lambda net, optimizer: amp.scale_loss(optimizer, loss_of(net))),
        "scale_loss: expected optimizers to be one of them or a list, got a Tensor",
    ),
    (
        lambda: initialize(linear_net(), enabled=None),
        "initialize: expected enabled, the third argument, to be True or False, got None",
    ),
    (
        lambda: amp.cast_for_inference(linear_net(), torch.int32),
        "cast_for_inference: expected dtype to be a floating torch.dtype, got torch.int32",
    ),
    (
        lambda: torchamp.LossScaler(1.0, device="cpu"),
        "LossScaler: expected device to be a torch.device, got a str",
    ),
    (
        lambda: setattr(torchamp.LossScaler(), "rule", 1.0),
        "LossScaler: expected rule to be a ScaleRule, got a float",
    ),
    (
        lambda: ops.ScaleRule(growth_interval=2.5),
        "ScaleRule: expected growth_interval to be an integer, got a float",
    ),
    (
        lambda: ops.ScaleRule(growth_interval=2**64),
        "ScaleRule: expected numbers of 64 bits, got 18446744073709551616",
    ),
    (
        lambda: setattr(ops.ScaleRule(), "min_scale", "small"),
        "ScaleRule: expected min_scale to be a number, got a str",
    ),
    (
        lambda: amp.scale_loss(torch.ones(()), made()[1], delay_unscale="no"),
        "scale_loss: expected delay_unscale to be True, False or None, got a str",
    ),
    (
        lambda: amp.scale_loss(torch.ones(()), made()[1], delay_overflow_check="no"),
        "scale_loss: expected delay_overflow_check to be True or False, got a str",
    ),
    (
        lambda: amp.clip_grad_norm_(made()[1], 1.0, None),
        "clip_grad_norm_: expected norm_type to be a number, got a NoneType",
    ),
    (
        lambda: amp.clip_grad_norm_(made()[1], torch.ones(2)),
        "clip_grad_norm_: expected max_norm to be a number, got a Tensor",
    ),
    (
        lambda: amp.save("net.pt", made()[1], "net.pt"),
        "save: expected models[0] to be a torch.nn.Module, got a str",
    ),
    (
        lambda: amp.save(*made(), None),
        "save: expected file to be a path or a binary file, got a NoneType",
    ),
    (
        lambda: amp.load(*made(), None),
        "load: expected file to be a path or a binary file, got a NoneType",
    ),
    (
        lambda: amp.set_policy(None, "float32"),
        "set_policy: expected model to be a torch.nn.Module, got a NoneType",
    ),
    (
        lambda: amp.AveragedModel([linear_net()]),
        "AveragedModel: expected model to be a torch.nn.Module, got a list",
    ),
    (
        lambda: amp.AveragedModel(linear_net()).update_parameters(None),
        "update_parameters: expected model to be a torch.nn.Module, got a NoneType",
    ),
    (
        lambda: amp.GradScaler("cpu").step(linear_net()),
        f"step: {THE_MODEL}",
    ),
    (
        lambda: amp.GradScaler("cpu").unscale_(None),
        "unscale_: expected optimizer to be a torch.optim.Optimizer, got a NoneType",
    ),
    (
        lambda: torchamp.Amp(linear_net(), enabled=None),
        "initialize: expected enabled to be True or False, got None",
    ),
    *(
        (
            lambda text=text: torchamp.Amp(linear_net(), enabled=text),
            f"initialize: expected enabled to be True or False, got {text!r}{words}",
        )
        for text, words in (
            ("false", "; write enabled=False"),
            ("True", "; write enabled=True"),
            ("O2", "; write opt_level='O2'"),
            ("no", ""),
        )
    ),
    (
        lambda: torchamp.Amp(linear_net(), enabled=torch.ones(2)),
        "initialize: expected enabled to be True or False, got tensor([1., 1.])",
    ),
    (
        lambda: optimizers.FusedSGD(linear_net().parameters(), 0.1, stochastic_rounding="yes"),
        "FusedSGD: expected stochastic_rounding to be True or False, got a str",
    ),
    (
        lambda: fused_adam(linear_net()).step(1.0),
        "step: expected closure to be a function or None, got a float",
    ),
)
ERRORS = (
    *((program, RuntimeError, words) for program, words in RUNTIME_ERRORS),
    *((program, TypeError, words) for program, words in TYPE_ERRORS),
    *((program, ValueError, words) for program, words in VALUE_ERRORS),
    *(
        (option(name, value), error, f"initialize: expected {name} {words}")
        for name, value, error, words in OPTIONS
    ),
)
WARNINGS = (
    (
        closed(train_in_float32),
        "forward: expected an open Amp, got one that close() has ended: its models compute in "
        "float32 from now on; close it after training, and call them in torch.no_grad()",
    ),
    (a_teacher, TEACHER),
    (lambda: a_teacher("O3"), TEACHER),
    (lambda: a_teacher("O5"), TEACHER),
    (
        stochastic_rounding,
        "initialize: expected optimizers[0] without stochastic_rounding, which is of bfloat16 "
        "parameters that have no masters, got one with it, which changes nothing; set "
        "master_weights to false, or leave it out",
    ),
)
RIGHT = (
    a_second_optimizer,
    closed(use_what_is_closed),
    closed(train_with, "O2"),
    released(lambda owner: loss_of(owner.models[0]).backward()),
    released(lambda owner: owner.load_state_dict(owner.state_dict())),
    lambda: initialize(linear_net().requires_grad_(False), sgd(linear_net()), opt_level="O1"),
    lambda: a_teacher("O0"),
    lambda: a_teacher("O1"),
    a_teacher_that_stays_as_it_is,
    models_that_no_optimizer_steps,
    lambda: stochastic_rounding(master_weights=False),
    lambda: stochastic_rounding("O4"),
    option("keep_batchnorm_fp32", "True"),
    another_rule,
    another_first_scale,
    options_of_others,
    option("keep_fp32", "2"),
    option("keep_fp32", ["0", "2"]),
    option("keep_fp32", nn.Linear),
    a_loss_beside_the_model,
    cast_a_frozen_part,
    lambda: initialize(nn.MSELoss()),
    lambda: initialize(nn.MSELoss(), []),
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
    with pytest.raises(error, match=f"^{re.escape(words)}$"):
        program()


@pytest.mark.parametrize("program, words", WARNINGS, ids=name_of)
def test_warns_once(program, words):
    with pytest.warns(UserWarning, match=f"^{re.escape(words)}$") as caught:
        warnings.simplefilter("always")
        program()
    assert len(caught) == 1


@pytest.mark.parametrize("program", RIGHT, ids=name_of)
def test_is_right(program):
    program()

"""Scripts of events for tests/python/support/scripted.py and tests/languages/main.cpp.

A script is text, an event a line: its name and what it is told.

    optimizer KIND OPTION… PART…  of these parts of the net, or of parameters such as first.bias:
                                  first, norm, last, scalar, empty, strided, sliced; a bar begins
                                  another group, of half the lr; an option is state_dtype=bfloat16
    initialize LEVEL LOSS_SCALE OPTION…
                                  of all optimizers so far, with two losses
    release                       ends that; another initialize may follow
    backward LOSS SEED FLAG…      of a batch of that seed; the flags are
                                  delayed     leaves the grads scaled
                                  deferred    leaves it to a later backward to move the scale
                                  overflow    one parameter's grad is not finite
                                  nan         nor is the loss
                                  tiny        the loss is small enough for 16-bit grads to be zero
                                  inner       reaches first and norm, and is given optimizer 0
                                  reach=PARTS of these parts' parameters alone, without a batch
                                  of=LIST     given these optimizers, by default all
                                  masters=OPTIMIZER
                                              reaches its masters too
                              and of what happens in the scope of the scale_loss:
                                  twice       two backwards
                                  unused      none
                                  unscaled    one of the loss that is not scaled
                                  zeroing     zeroes the optimizers' grads before it
                                  stepping    a step after it
                                  nested      another scale_loss after it
                                  raising     raises once the grads of last are there
                                  late        another backward, after the scope
    clip_norm MAX OPTIMIZER…, clip_value MAX OPTIMIZER…
    clip_model MAX                the values of all grads by LibTorch's function
    step OPTIMIZER
    closure OPTIMIZER LOSS SEED FLAG…
                                  a step whose closure zeroes its grads and does that backward
    zero OPTIMIZER TO             none or zeros
    zero_model TO
    drop PART…                    sets the model's grads to none
    replace PART…                 puts halved grads in their place
    halve_grads PART…             halves them in place
    negate OPTIMIZER              its masters' grads, which are compared from now on
    set OPTIMIZER OPTION VALUE
    add_group OPTIMIZER           of the part extra, which was frozen
    scale LOSS VALUE CLEAN        sets a loss scale and how many clean backwards it has seen
    freeze PART…, thaw PART…      whether they need grads
    write PART…                   halves parameters of the model
    swap PART…                    the same, until swap_back writes what was there
    swap_back
    halve_states OPTIMIZER, clear_states OPTIMIZER
    write_data PART…              the same past PyTorch's version counters
    refresh                       makes the masters what the model holds
    look OPTIMIZER…               from now on the masters' grads are compared, and therefore made
    save FILE, load FILE

Optimizers and losses are given by number; an empty list of optimizers means all. An event that ends
in "# refused" must raise.
"""

from __future__ import annotations

from collections.abc import Iterator

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
LIBTORCH = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop")
FUSED = (
    "FusedSGD",
    "FusedLARS",
    "FusedAdam",
    "FusedAdamW",
    "FusedAdagrad",
    "FusedNovoGrad",
    "FusedLAMB",
)

Script = list[str]


def start(level: str, *optimizers: str, loss_scale: str = "dynamic") -> Script:
    """The first events: optimizers, such as "SGD first norm", and their initialize."""
    named = [f"optimizer {optimizer}" for optimizer in optimizers]
    return [*named, f"initialize {level} {loss_scale}", *["look"] * is_plain(named)]


def is_plain(script: Script) -> bool:
    """Whether an optimizer is LibTorch's, whose masters have grads without a look."""
    return any(event.split()[:2] == ["optimizer", kind] for event in script for kind in LIBTORCH)


def events_in(text: str) -> Script:
    return [line.strip() for line in text.strip().splitlines()]


def simple_loop(level: str, kind: str) -> Script:
    """Steps by accumulated, clipped grads; where the loss scale is dynamic, it starts too high for
    float16."""
    is_scaled = level in ("O1", "O2")
    loss_scale = "dynamic" if is_scaled else "1"
    events = start(level, f"{kind} first norm last", loss_scale=loss_scale)
    events += ["scale 0 524288 0"] * is_scaled
    for seed in range(3):
        events += ["zero 0 none", f"backward 0 {seed}", f"backward 0 1{seed}"]
        events += ["clip_norm 0.5", "step 0"]
    return events


#: What one optimizer, of all parts, goes through at any level.
OF_ONE = {
    "a_look_after_a_skip": """
        backward 0 1 overflow
        step 0
        look
        step 0
    """,
    "a_look_at_delayed_grads": """
        backward 0 1
        backward 0 2 delayed
        look
        backward 0 3
        step 0
    """,
    "zeros_of_nothing": """
        backward 0 1
        step 0
        zero 0 none
        backward 0 2 overflow
        zero 0 none
        zero 0 zeros
        step 0
    """,
    "zeros_after_an_overflow": """
        backward 0 1
        step 0
        zero 0 none
        backward 0 2 overflow
        zero 0 zeros
        step 0
    """,
    "delays": """
        backward 0 1 delayed
        backward 0 2 delayed
        step 0 # refused
        clip_norm 1 # refused
        clip_value 1 # refused
        backward 0 3
        step 0
        backward 1 4 delayed
        backward 0 5 delayed
        backward 1 6
        step 0
        backward 0 7 delayed
        zero 0 none
        step 0
    """,
    "overflows": """
        backward 0 1
        step 0
        zero 0 none
        backward 0 2 overflow
        step 0
        backward 0 3
        step 0
        zero 0 none
        backward 0 4 delayed overflow
        backward 0 5 delayed
        backward 0 6
        step 0
        zero 0 none
        backward 0 7 deferred overflow
        step 0
        zero 0 none
        backward 0 8
        step 0
    """,
    "two_losses": """
        scale 0 1024 1999
        scale 1 64 1998
        backward 0 1
        backward 1 2
        step 0
        zero 0 none
        backward 1 3 overflow
        step 0
        zero 0 none
        backward 1 4
        backward 0 5
        step 0
    """,
    "back_to_a_file": """
        backward 0 1
        step 0
        save run.pt
        zero 0 none
        backward 0 2 overflow
        step 0
        zero 0 none
        backward 0 3
        step 0
        load run.pt
        zero 0 none
        backward 0 2
        step 0
    """,
}

#: What two optimizers go through that share the last part, where it has no master.
OF_TWO_THAT_SHARE = {
    "shared_in_one": """
        backward 0 1 # refused
        step 0
    """,
    "skipped_beside_a_delay": """
        backward 0 1 reach=last overflow of=1
        backward 0 2 reach=first delayed of=0
        step 1
        step 0 # refused
        backward 0 3 reach=first of=0
        step 0
    """,
    "the_second_goes_on": """
        backward 0 1 overflow of=0
        step 1
        zero 1 none
        backward 0 2 reach=last of=1
        step 1
    """,
}

#: Two optimizers of different parts, one of which is to skip.
OF_TWO = {
    "a_model_zeroed_after_an_overflow_elsewhere": """
        backward 0 1 reach=last overflow
        zero_model none
        step 0
        step 1
    """,
    "clipped_with_an_overflowed_one": """
        backward 0 1 overflow
        step 0
        backward 0 2
        clip_norm 0.1
        step 0
        step 1
    """,
}

#: An option that chooses an optimizer's algorithm, and its values in turn.
CHANGES = {
    "FusedAdam": ("amsgrad", [0, 1, 0, 1]),
    "FusedSGD": ("momentum", [0, 0.5, 0, 0.875]),
    "SGD": ("momentum", [0, 0.5, 0, 0.875]),
}


def changed_algorithm(level: str, kind: str) -> Script:
    """A step and a skipped one by each of the values."""
    option, values = CHANGES[kind]
    events = start(level, f"{kind} first norm last")
    for i, value in enumerate(values):
        events += [f"set 0 {option} {value}", "zero 0 none", f"backward 0 {i}", "step 0"]
        events += ["zero 0 none", f"backward 0 {i} overflow", "step 0"]
    return events


def released_after_nan(level: str) -> Script:
    """A fixed scale lets NaNs into the states, which have no masters."""
    first = start(level, "FusedNovoGrad first norm last", loss_scale="1")
    first[-1] += " master_weights=0"
    return [*first, "backward 0 1 nan", "step 0", "release"]


def loaded_after_nan(kind: str) -> Script:
    """Of a parameter without dimensions, too."""
    first = start("O0", f"{kind} scalar sliced", loss_scale="1")
    return [*first, "backward 0 1 reach=scalar,sliced nan", "step 0", "save run.pt", "load run.pt"]


def deferral_after_a_load(level: str) -> Script:
    """Grads that wait for the step in the model must not be written meanwhile."""
    events = """
        backward 0 1
        step 0
        save run.pt
        load run.pt
        zero 0 none
        backward 0 2
        halve_grads first.weight
        step 0 # refused
    """
    first = start(level, "FusedSGD first norm last")
    first[-1] += " materialize_master_grads=0"
    return first + events_in(events)


def by_hand() -> Iterator[tuple[str, Script]]:
    """Every script above, by its name, at every level."""
    for kind in ("SGD", "AdamW", "FusedSGD", "FusedAdamW"):
        yield f"loaded_after_nan-{kind}", loaded_after_nan(kind)
    for level in ("O2", "O5"):
        yield f"deferral_after_a_load-{level}", deferral_after_a_load(level)
    for level in ("O2", "O3", "O5"):
        yield f"released_after_nan-{level}", released_after_nan(level)
    for level in LEVELS:
        for kind in ("SGD", *FUSED):
            yield f"simple_loop-{level}-{kind}", simple_loop(level, kind)
        for kind in CHANGES:
            yield f"changed_algorithm-{level}-{kind}", changed_algorithm(level, kind)
        for kind in ("SGD", "FusedSGD"):
            first = start(level, f"{kind} first norm last")
            for name, text in OF_ONE.items():
                yield f"{name}-{level}-{kind}", first + events_in(text)
        for one, other in (("SGD", "SGD"), ("FusedSGD", "FusedAdam")):
            first = start(level, f"{one} first norm last", f"{other} last")
            shared = {} if level in ("O2", "O5") else OF_TWO_THAT_SHARE
            for name, text in shared.items():
                yield f"{name}-{level}-{one}-{other}", first + events_in(text)
            apart = start(level, f"{one} first norm", f"{other} last")
            for name, text in OF_TWO.items():
                yield f"{name}-{level}-{one}-{other}", apart + events_in(text)

"""killed_saves.py <path> <kills>: kills a process that saves over one path, again and again.

Each save's parameters are all equal, to the number of the save. Prints the numbers that were loaded
after each kill.
"""

import os
import random
import signal
import sys
import time

import torch
from nets import initialized, sgd

from torchamp import amp


def filled(number: int):
    """A model whose parameters all have that value, with its optimizer."""
    linear = torch.nn.Linear(128, 512)
    for param in linear.parameters():
        torch.nn.init.constant_(param, number)
    return initialized("O2", linear, sgd)


def save_forever(path: str, started: int) -> None:
    """Closes the pipe's end `started` after the first save."""
    for number in range(1, 1024):
        amp.save(*filled(number), path)
        if number == 1:
            os.close(started)


def killed_save(path: str, duration: float) -> None:
    """Kills it within the next few saves, of that duration in seconds each, after the first."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        save_forever(path, writer)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    time.sleep(random.uniform(0, 4 * duration))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def loaded_number(path: str) -> int:
    model, optimizer = filled(-1)
    amp.load(model, optimizer, path)
    (number,) = {value.item() for param in model.parameters() for value in param.unique()}
    return int(number)


def main(path: str, kills: int) -> None:
    torch.set_num_threads(1)  # a forked process has no others
    for _ in range(2):  # the first one is slow
        start = time.monotonic()
        amp.save(*filled(0), path)
        duration = time.monotonic() - start
    for _ in range(kills):
        killed_save(path, duration)
        print(loaded_number(path))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

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


def save_forever(path: str) -> None:
    for number in range(1, 1024):
        amp.save(*filled(number), path)


def killed_save(path: str) -> None:
    child = os.fork()
    if child == 0:
        save_forever(path)
    time.sleep(random.uniform(0.02, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def loaded_number(path: str) -> int:
    model, optimizer = filled(-1)
    amp.load(model, optimizer, path)
    (number,) = {value.item() for param in model.parameters() for value in param.unique()}
    return int(number)


def main(path: str, kills: int) -> None:
    amp.save(*filled(0), path)
    for _ in range(kills):
        killed_save(path)
        print(loaded_number(path))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

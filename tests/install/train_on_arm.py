"""Trains a small net at every level, saves it to a folder, loads what another processor saved to
another, and prints what the tensors are: train_on_arm.py <folder> [<other folder>]"""

import hashlib
import json
import pathlib
import sys

import torch

from torchamp import amp, build_info, optimizers


def make(level: str) -> tuple:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = optimizers.FusedAdamW(net.parameters(), lr=1e-2)
    return amp.initialize(net, optimizer, opt_level=level)


def digest(model, optimizer) -> str:
    """Of the bytes of all tensors in a checkpoint."""
    tensors = [*model.state_dict().values()]
    for state in optimizer.state_dict()["state"].values():
        tensors += [torch.as_tensor(state[name]) for name in sorted(state)]
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(bytes(tensor.detach().reshape(-1).view(torch.uint8).tolist()))
    return digest.hexdigest()


def train(level: str, file: pathlib.Path) -> dict:
    model, optimizer = make(level)
    inputs = torch.linspace(-1, 1, 64 * 8).reshape(64, 8)
    targets = inputs.sum(1, keepdim=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs).float(), targets)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    amp.save(model, optimizer, file)
    return {"losses": losses, "digest": digest(model, optimizer)}


def load(level: str, file: pathlib.Path) -> str:
    model, optimizer = make(level)
    amp.load(model, optimizer, file)
    return digest(model, optimizer)


own, *others = map(pathlib.Path, sys.argv[1:])
own.mkdir(parents=True, exist_ok=True)
levels = ["O0", "O1", "O2", "O3", "O4", "O5"]
report = {
    "kernels": build_info()["kernels"]["cpu"],
    "trained": {level: train(level, own / f"{level}.pt") for level in levels},
    "loaded": {level: load(level, folder / f"{level}.pt") for folder in others for level in levels},
}
print(json.dumps(report))

"""Random weights that let every part of a model show in its output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

RANDOM_WEIGHTS = "weights are random"
"""Note on a model that was not trained."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generators inside the block and restore them after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def vary_constants(model: nn.Module, seed: int) -> None:
    """Give every parameter that holds one repeated value different values.

    A zero bias or head, a norm's weight of ones and a layer scale of 1e-6 hide the operations
    they take part in: a program that gets those wrong would still agree with the model.
    Zeros become N(0, 0.02²), layer scales U(0.5, 1.5), other constants c become c · U(0.8, 1.2).
    """
    generators: dict[torch.device, torch.Generator] = {}
    for parameter in model.parameters():
        if parameter.numel() == 0 or not parameter.is_floating_point():
            continue
        value = parameter.flatten()[0].item()
        if (parameter.numel() == 1 and value != 0) or not bool((parameter == value).all()):
            continue
        device = parameter.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        if value == 0:
            parameter.normal_(0.0, 0.02, generator=generators[device])
        elif abs(value) < 0.01:
            parameter.uniform_(0.5, 1.5, generator=generators[device])
        else:
            parameter.uniform_(0.8, 1.2, generator=generators[device]).mul_(value)


@torch.no_grad()
def calibrate_batch_norms(model: nn.Module, batch: torch.Tensor) -> None:
    """Set the running statistics of every batch norm from one batch.

    With a mean of 0 and a variance of 1 the signal of a deep untrained network dies out
    (EfficientNet's output is of the order of 1e-14) and nothing can be judged.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    if not norms:
        return
    model.eval()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train()


def disable_dropout(model: nn.Module) -> bool:
    """Switch every dropout off and return whether there was one: a random output has no error."""
    found = False
    for module in model.modules():
        if isinstance(module, _DropoutNd) or type(module).__name__ == "StochasticDepth":
            found = found or vars(module)["p"] > 0
            vars(module)["p"] = 0.0
    return found

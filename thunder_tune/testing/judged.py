"""A small model to be judged, its inputs, and how a candidate is rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from thunder_tune.measure.accuracy import Judge, Rejected
from thunder_tune.measure.steps import Arguments, forward_step

BATCH, WIDTH, CLASSES = 16, 64, 48


def make_inputs(seed: int, dtype: torch.dtype = torch.float32) -> Arguments:
    """Return one set of inputs of the model."""
    generator = torch.Generator().manual_seed(seed)
    return Arguments((torch.randn(BATCH, WIDTH, generator=generator).to(dtype),))


def make_bf16(seed: int) -> Arguments:
    """Return one set of inputs in bfloat16."""
    return make_inputs(seed, torch.bfloat16)


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Return the same perceptron at every call."""
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, CLASSES)
        )
    return model.eval().to(dtype)


def rejection(judge: Judge, candidate: Callable[..., Any]) -> Rejected:
    """Have a candidate judged and return why it was rejected."""
    with pytest.raises(Rejected, match=r".") as caught:
        judge.judge(forward_step(candidate))
    return caught.value

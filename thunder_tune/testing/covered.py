"""Small models of every family that thunder-tune should handle, with random weights.

The same computation as at published sizes, one or two layers of it, so that one assignment takes
seconds on a CPU. Their list with its results is docs/coverage.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from thunder_tune.models.family import LoadedModel
from thunder_tune.models.inputs import Inputs
from thunder_tune.models.weights import (
    calibrate_batch_norms,
    disable_dropout,
    seeded,
    vary_constants,
)

_WITH_BATCH_NORM = frozenset({"torchvision", "timm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A small model of the list.

    Attributes:
        name: Unique in the list.
        family: "thunder", "constructs", "torchvision", "transformers" or "timm".
        make: Builds it on the CPU in float32; random generators are seeded around the call.
        inputs: Makes the arguments of a call on the CPU from a seeded generator.
    """

    name: str
    family: str
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Inputs]

    def load(self, *, training: bool, device: str = "cpu") -> LoadedModel:
        """Build it ready to be judged: every parameter shows in the output, dropout is off."""
        with seeded(0):
            model = self.make()
            if self.family in _WITH_BATCH_NORM:
                calibrate_batch_norms(model, self.inputs(torch.Generator().manual_seed(7)).args[0])
            vary_constants(model, 0)
        disable_dropout(model)
        model.to(device).train(training)
        if not training:
            model.requires_grad_(False)

        def make_inputs(seed: int) -> Inputs:
            made = self.inputs(torch.Generator().manual_seed(seed))
            return made.map(lambda tensor: tensor.to(device))

        return LoadedModel(model, make_inputs)


@functools.cache
def covered() -> dict[str, Covered]:
    """Return the list by name; families whose package is not installed are left out."""
    from thunder_tune.testing import covered_constructs, covered_thunder, covered_vision

    found = [*covered_thunder.MODELS, *covered_constructs.MODELS, *covered_vision.MODELS]
    if find_spec("transformers") is not None:
        from thunder_tune.testing import covered_transformers

        found += covered_transformers.MODELS
    if find_spec("timm") is not None:
        found += covered_vision.timm_models()
    return {model.name: model for model in found}


def tokens(
    vocabulary: int = 61, *, batch: int = 2, length: int = 8
) -> Callable[[torch.Generator], torch.Tensor]:
    """Return a maker of token ids (batch, length)."""
    return lambda generator: torch.randint(vocabulary, (batch, length), generator=generator)


def floats(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    """Return a maker of N(0, 1) tensors."""
    return lambda generator: torch.randn(shape, generator=generator)


def positional(
    *makers: Callable[[torch.Generator], torch.Tensor],
) -> Callable[[torch.Generator], Inputs]:
    """Return a maker of positional arguments."""
    return lambda generator: Inputs(tuple(make(generator) for make in makers))


def keywords(
    **makers: Callable[[torch.Generator], torch.Tensor],
) -> Callable[[torch.Generator], Inputs]:
    """Return a maker of keyword arguments."""
    return lambda generator: Inputs((), {k: make(generator) for k, make in makers.items()})

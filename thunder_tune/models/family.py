"""What a family of models offers to the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from thunder_tune.models.inputs import Inputs
from thunder_tune.values.source import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A built-in model: its name, its family and one sentence."""

    name: str
    family: str
    description: str


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to be run, and its inputs.

    Attributes:
        model: On its device, in its dtype, in the mode of its source.
        make_inputs: Makes the inputs of a seed, on the model's device; other seeds, other values.
        notes: What the user should know of how it was made.
    """

    model: nn.Module
    make_inputs: Callable[[int], Inputs]
    notes: tuple[str, ...] = ()


class Family(Protocol):
    """A group of built-in models that are made in the same way; a module is enough."""

    def infos(self) -> tuple[ModelInfo, ...]:
        """List the models without building one."""

    def make(self, source: ModelSource) -> LoadedModel:
        """Build a model with random weights seeded by `source.seed`.

        It may still lie on the CPU, in float32 and in training mode: `load` sees to that.
        """

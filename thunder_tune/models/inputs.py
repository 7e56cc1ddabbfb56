"""The arguments of one call of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

SCALES = (1.0, 0.5, 2.0, 1.5)
"""By what the values of a seed's inputs are multiplied, seeds taken in turn.

What is right at one scale alone (a range that was measured once, an overflow) shows at another.
"""


def scale_of(seed: int) -> float:
    """Return the scale of the inputs of a seed; that of every fourth one, from 0 on, is 1."""
    return SCALES[seed % len(SCALES)]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Positional and keyword arguments of one call: `model(*inputs.args, **inputs.kwargs)`."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return every tensor in the arguments, nested ones too, in a fixed order."""
        leaves, _ = tree_flatten((self.args, dict(self.kwargs)))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """Return the same arguments with every tensor replaced by `change(tensor)`."""

        def apply(leaf: object) -> object:
            return change(leaf) if isinstance(leaf, torch.Tensor) else leaf

        return Inputs(tree_map(apply, self.args), tree_map(apply, dict(self.kwargs)))

"""The search space as data: dimensions, their choices, and what was left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from thunder_tune.errors import InputError
from thunder_tune.values.codec import digest, to_data

PROGRAM = "program"
"""Dimension of family 1: the whole-program back end, or "composed"."""
COMPOSED = "composed"
CUDA_GRAPHS = "cuda_graphs"
FLOAT32_MATMUL = "float32_matmul"
EXECUTOR = "executor:"
"""Prefix of a dimension of family 2: executor of an anchor class; the class id follows."""
FUSER = "fuser:"
"""Prefix of a dimension of family 3: fuser of a glue class; the class id follows."""
PRECISION = "precision:"
"""Prefix of a dimension of family 6: compute type of a matmul class; the class id follows."""

REWRITE = "rewrite:"
"""Prefix of a dimension of family 12: kernel of a class of rewrite sites; the class id follows."""
NO_REWRITE = "none"
BOUNDARY = "boundary:"
"""Prefix of a dimension of family 4: what becomes of a class of seams; the class id follows."""
MERGE, CUT = "merge", "cut"
REGION_LIMIT = "region_limit"
"""Dimension of family 4: from how many ops on a region ends at the next seam."""
NO_LIMIT = "none"

Assignment = Mapping[str, str]
"""A choice for every dimension, by dimension name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A choice that was left out, with the reason."""

    choice: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One thing that may vary.

    Attributes:
        name: Unique in the space; built from the family and, where it has one, the class id.
        family: Family of the design: "whole-program", "executor", "fuser", "cuda-graphs",
            "precision", ...
        choices: Allowed choices, at least one; the first is the default.
        excluded: Choices left out, each with its reason.
    """

    name: str
    family: str
    choices: tuple[str, ...]
    excluded: tuple[Excluded, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an empty or repeated choice."""
        if not self.choices or len(set(self.choices)) != len(self.choices):
            raise InputError(f"dimension {self.name!r}: choices must be distinct, at least one")


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """All dimensions of one program on one machine."""

    dimensions: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        """Refuse repeated names."""
        names = [d.name for d in self.dimensions]
        if len(set(names)) != len(names):
            raise InputError("search space: dimension names must be distinct")

    @cached_property
    def by_name(self) -> dict[str, Dimension]:
        """Dimensions by name."""
        return {d.name: d for d in self.dimensions}

    @cached_property
    def key(self) -> str:
        """Digest of names and choices: one Optuna study belongs to one key."""
        return digest([[d.name, list(d.choices)] for d in self.dimensions])

    @property
    def default(self) -> dict[str, str]:
        """The assignment of every dimension's first choice."""
        return {d.name: d.choices[0] for d in self.dimensions}

    def size(self) -> int:
        """Number of assignments, those without effect included."""
        total = 1
        for d in self.dimensions:
            total *= len(d.choices)
        return total

    def check(self, assignment: Assignment) -> dict[str, str]:
        """Return the assignment completed with defaults.

        Raises:
            InputError: A dimension or a choice is not in the space.
        """
        for name, choice in assignment.items():
            if name not in self.by_name:
                raise InputError(f"unknown dimension {name!r} in an assignment")
            if choice not in self.by_name[name].choices:
                allowed = ", ".join(self.by_name[name].choices)
                raise InputError(f"dimension {name!r}: {choice!r} is not one of {allowed}")
        return {**self.default, **assignment}


def describe(space: SearchSpace) -> list[dict[str, object]]:
    """Return the JSON list of dimensions that `thunder-tune space --json` prints."""
    return [to_data(d) for d in space.dimensions]

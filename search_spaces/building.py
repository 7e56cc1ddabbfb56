"""Build the search space: the families of a preset, applied to a program on a machine."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import yaml

from thunder_tune.errors import InputError
from thunder_tune.measure.policies import policy as policy_named
from thunder_tune.search_spaces import (
    boundaries,
    cuda_graphs,
    placement,
    precision,
    rewriting,
    whole_program,
)
from thunder_tune.search_spaces.family import Context, Family
from thunder_tune.values.program import Program
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import SearchSpace

FAMILIES: dict[str, Family] = {
    "whole-program": whole_program.whole_program,
    "executor": placement.executors,
    "fuser": placement.fusers,
    "boundary": boundaries.boundaries,
    "precision": precision.precision,
    "rewrite": rewriting.rewrites,
    "cuda-graphs": cuda_graphs.cuda_graphs,
}
"""Families by name, in the order their dimensions are listed."""

PRESETS = ("quick", "inference", "training", "low-precision", "full")


def families_of(preset: str) -> tuple[str, ...]:
    """Read a preset's families.

    Raises:
        InputError: An unknown preset, or a preset that names an unknown family.
    """
    if preset not in PRESETS:
        raise InputError(f"unknown preset {preset!r}: use one of {', '.join(PRESETS)}")
    text = (
        files("thunder_tune.search_spaces").joinpath(f"presets/{preset}.yaml").read_text("utf-8")
    )
    named = tuple(yaml.safe_load(text)["families"])
    unknown = [name for name in named if name not in FAMILIES]
    if unknown:
        raise InputError(f"preset {preset!r}: unknown family {unknown[0]!r}")
    return named


def build_space(
    program: Program,
    *,
    source: ModelSource,
    policy: str,
    preset: str,
    viable: Callable[[str, str], str],
    back_end_reason: Callable[[str], str],
) -> SearchSpace:
    """Build the dimensions of a program on the machine this runs on.

    Args:
        program: The captured program.
        source: The model and how it is run.
        policy: Name of the accuracy policy; it decides about precision.
        preset: Which families to offer.
        viable: (class id, target) -> "" or a reason, from `thunder_tune.compiler.viability`.
        back_end_reason: Back end -> "" or a reason.

    Raises:
        InputError: An unknown policy or preset.
    """
    context = Context(
        program=program,
        source=source,
        policy=policy_named(policy),
        viable=viable,
        back_end_reason=back_end_reason,
    )
    wanted = families_of(preset)
    return SearchSpace(
        dimensions=tuple(
            d for name, family in FAMILIES.items() if name in wanted for d in family(context)
        )
    )

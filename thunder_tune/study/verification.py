"""Whether a recipe keeps its claim on this machine: can it be told, and what is measured now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_tune.study.confirmation import block_shape
from thunder_tune.values.comparison import Contender
from thunder_tune.values.job import Description
from thunder_tune.values.recipe import TUNED, Evidence, Recipe
from thunder_tune.values.space import PROGRAM
from thunder_tune.values.study import Winner, baselines_for

TOLERANCE = 0.01
"""A ratio measured on another occasion may lie this far outside the stated interval."""
TOO_NOISY = 0.1
"""Half width of the interval measured now from which on agreement with a claim means nothing."""

Finding = Literal["confirmed", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim beside what is measured now.

    Attributes:
        finding: "confirmed" where the speedup over the best baseline lies within the stated
            interval widened by 1 %, or its own interval meets the stated one.
        change: Speedup now over the speedup stated, less 1: below 0 where it is worse.
        resolution: Half width of the interval measured now, relative: smaller changes would not
            have been seen; infinite where too few processes timed both.
    """

    finding: Finding
    change: float
    resolution: float

    @property
    def is_too_noisy(self) -> bool:
        """Whether no change was seen because next to none could be."""
        return self.finding == "confirmed" and self.resolution > TOO_NOISY

    def is_worse_by(self, share: float) -> bool:
        """Whether the claim is broken by more than a share of the speedup."""
        return self.finding == "changed" and self.change < -share


def check(claim: Evidence, now: Winner) -> Check:
    """Hold a measurement against a claim.

    The speedup is compared, not the latency: a ratio to programs measured beside it carries over
    from one card of a kind to another.
    """
    low, high = claim.speedup_ci95
    now_low, now_high = now.speedup_ci95
    is_within = low / (1 + TOLERANCE) <= now.speedup <= high * (1 + TOLERANCE)
    do_meet = now_low <= high and low <= now_high
    return Check(
        finding="confirmed" if is_within or do_meet else "changed",
        change=now.speedup / claim.speedup - 1.0,
        resolution=math.inf if now_low <= 0 else math.sqrt(now_high / now_low) - 1.0,
    )


def why_not_here(recipe: Recipe, *, has_cuda: bool) -> str:
    """Say why a recipe cannot be measured on a machine at all, or "".

    Args:
        recipe: To be verified.
        has_cuda: Whether there is a CUDA device.
    """
    if recipe.evidence is None:
        return "the recipe states no measurement"
    if recipe.source.device == "cuda" and not has_cuda:
        return f"another kind of device: no CUDA device here, {recipe.fingerprint.device} there"
    return ""


def why_not_comparable(recipe: Recipe, description: Description) -> str:
    """Say why what is measured here says nothing of a recipe's claim, or ""."""
    here, there = description.fingerprint, recipe.fingerprint
    if here.device != there.device:
        return f"another kind of device: {here.device} here, {there.device} there"
    plan = recipe.plans[0]
    if description.signature != plan.signature:
        return f"other shapes: {description.signature} here, {plan.signature} there"
    program = description.program
    if program.hash != plan.program_hash:
        return (
            f"another program: {program.hash[:12]} here, {plan.program_hash[:12]} there: "
            "the model is another, or other versions capture it in another way"
        )
    return ""


def contenders(recipe: Recipe) -> tuple[Contender, ...]:
    """Return the recipe and the baselines of its claim, the most important first.

    Where time is short those at the end are left out.
    """
    tuned = Contender(name=TUNED, assignment=recipe.plans[0].assignment)
    beside = recipe.evidence.baselines if recipe.evidence else ()
    timed = sorted((b.latency_ms, b.name) for b in beside if b.latency_ms is not None)
    known = baselines_for(recipe.source.device)
    names = [name for _, name in timed if name in known] or list(known)
    baselines = [Contender(name=n, assignment={PROGRAM: n}, is_baseline=True) for n in names]
    return (tuned, *baselines)


def shape(claim: Evidence) -> tuple[int, int]:
    """Return blocks and calls in a block for programs as fast as those of a claim."""
    beside: Sequence[float] = [b.latency_ms for b in claim.baselines if b.latency_ms is not None]
    return block_shape([claim.latency_ms, *beside])

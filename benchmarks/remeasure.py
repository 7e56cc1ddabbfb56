"""Whether recipes keep their figures on another occasion.

Run: python -m benchmarks.remeasure RECIPE ... [--rounds 3]
Each recipe and eager are measured again in fresh processes, in interleaved blocks. Its speedup
over eager should lie within the stated interval and 1 % on either side, its latency within 5 %.
The stated interval of that ratio is made of those of the two latencies, as if these were
independent.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from thunder_tune.cli import services
from thunder_tune.cli.bench_command import setting_of
from thunder_tune.measure.statistics import paired_ratio
from thunder_tune.recipes import read_recipe
from thunder_tune.study.bench import compare_now
from thunder_tune.study.verification import shape, why_not_comparable
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.values.comparison import Comparison, Contender
from thunder_tune.values.documents import disturbances, failure_text
from thunder_tune.values.job import DescribeJob
from thunder_tune.values.recipe import TUNED, Evidence, Recipe
from thunder_tune.values.space import PROGRAM

EAGER = "eager"
RATIO_TOLERANCE = 0.01
LATENCY_TOLERANCE = 0.05
KEPT = 0.9
"""Of the recipes, for the exit status 0."""


@dataclass(frozen=True)
class Stated:
    """What a recipe states against eager.

    Attributes:
        speedup: Eager's latency over its own.
        low: Of the 95 % interval of that.
        high: Likewise.
        latency_ms: Its own.
    """

    speedup: float
    low: float
    high: float
    latency_ms: float

    @classmethod
    def of(cls, claim: Evidence) -> Stated | None:
        """Read a claim; None where eager was not measured."""
        eager = next((b for b in claim.baselines if b.name == EAGER), None)
        if eager is None or eager.latency_ms is None or eager.ci95_ms is None:
            return None
        speedup = eager.latency_ms / claim.latency_ms
        halves = [math.log(high / low) / 2 for low, high in (eager.ci95_ms, claim.ci95_ms)]
        reach = math.exp(math.hypot(*halves))
        return cls(speedup, speedup / reach, speedup * reach, claim.latency_ms)

    def has(self, speedup: float) -> bool:
        """Whether a speedup lies within the interval and 1 %."""
        room = 1.0 + RATIO_TOLERANCE
        return self.low / room <= speedup <= self.high * room

    def is_as_fast(self, latency_ms: float) -> bool:
        """Whether a latency lies within 5 %."""
        return abs(latency_ms / self.latency_ms - 1.0) <= LATENCY_TOLERANCE


def measured(recipe: Recipe, claim: Evidence, rounds: int) -> Comparison | str:
    """Measure recipe and eager now; says why where that tells nothing."""
    setting = setting_of(recipe, "remeasure")
    programs = [
        Contender(name=TUNED, assignment=recipe.plans[0].assignment),
        Contender(name=EAGER, assignment={PROGRAM: EAGER}, is_baseline=True),
    ]
    blocks, calls = shape(claim)
    with services.pool(setting, workers=1) as pool:
        description = pool.describe(DescribeJob(setting=setting))
        if description.failure is not None:
            return description.failure.message
        if reason := why_not_comparable(recipe, description):
            return reason
        found = compare_now(
            setting,
            programs,
            pool=pool,
            observer=SilentObserver(),
            rounds=rounds,
            blocks=blocks,
            calls=calls,
            rehearsed=True,
            seed=time.time_ns() % 1_000_000,  # another occasion, other inputs
        )
    return failure_text(found.standing(TUNED).failure) or found


def said(recipe: Recipe, rounds: int) -> Iterator[str]:
    """Yield the columns of a recipe's row; the last two are "yes" or "no"."""
    claim = recipe.evidence
    stated = Stated.of(claim) if claim else None
    if claim is None or stated is None:
        yield "states no measurement beside eager"
        return
    yield f"{stated.speedup:.3f} ({stated.low:.3f}-{stated.high:.3f}), {stated.latency_ms:.4g} ms"
    found = measured(recipe, claim, rounds)
    if isinstance(found, str):
        yield found
        return
    ratio, latency_ms = paired_ratio(found.rounds, TUNED, EAGER), found.standing(TUNED).latency_ms
    if ratio is None or latency_ms is None:
        yield failure_text(found.standing(EAGER).failure)
        return
    low, high = ratio.interval()
    interval = f"({1 / high:.3f}-{1 / low:.3f})" if low else ""
    marks = ", ".join(disturbances(found))
    yield f"{1 / ratio.ratio:.3f} {interval}, {latency_ms:.4g} ms {marks}".strip()
    yield "yes" if stated.has(1 / ratio.ratio) else "no"
    yield "yes" if stated.is_as_fast(latency_ms) else "no"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    kept = [0, 0]
    recipes = [alone for path in asked.recipes for alone in read_recipe(path).by_shape]
    print("| recipe | stated against eager | now | ratio kept | latency kept |")
    print("|---|---|---|---|---|")
    for recipe in recipes:
        columns = list(said(recipe, asked.rounds))
        kept = [n + (c == "yes") for n, c in zip(kept, columns[2:] or ["", ""], strict=True)]
        row = [f"{recipe.model} {recipe.digest}", *columns, *[""] * (4 - len(columns))]
        print(f"| {' | '.join(row)} |", flush=True)
    print(f"\nratio kept by {kept[0]}, latency by {kept[1]} of {len(recipes)}")
    sys.exit(0 if min(kept) >= KEPT * len(recipes) else 1)


if __name__ == "__main__":
    main()

"""What `thunder-tune run` prints of a study that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from thunder_tune.values.documents import failure_groups
from thunder_tune.values.study import Outcome, Winner
from thunder_tune.values.trial import TrialResult

if TYPE_CHECKING:
    from rich.console import Console

    from thunder_tune.storage import Database

_ENDINGS = {
    "time": "ended by the time budget",
    "exhausted": "no other plan is left",
    "interrupted": "interrupted",
}
"""Why a search ended before the trials asked for; a failure is told by its error."""


def print_outcome(
    screen: Console, outcome: Outcome, database: Database, paths: Mapping[str, str]
) -> None:
    """Print the confirmation, the failures, what was counted and what won.

    Args:
        screen: Where to.
        outcome: How the study ended.
        database: Where its trials are.
        paths: Of the recipe files by digest.
    """
    from thunder_tune.cli import tables

    results = [record.result for record in database.trials(outcome.study)]
    if outcome.comparison is not None:
        screen.print(tables.confirmed(outcome.comparison, outcome.top))
    if groups := failure_groups(results):
        screen.print(tables.failures(groups))
    for line in _closing(outcome, paths):
        screen.print(line, soft_wrap=True)


def search_baselines(database: Database, study: str) -> dict[str, TrialResult]:
    """Return a study's search-time results of baselines by name."""
    from thunder_tune.study.baselines import baseline_name

    results = [record.result for record in database.trials(study)]
    return {baseline_name(r): r for r in results if r.role == "baseline"}


def _closing(outcome: Outcome, paths: Mapping[str, str]) -> list[str]:
    counts = outcome.counts
    ended = f", {_ENDINGS[outcome.stopped]}" if outcome.stopped in _ENDINGS else ""
    lines = [
        f"trials: {counts.complete} complete, {counts.failed} failed, {counts.pruned} pruned "
        f"of {counts.requested}{ended}"
    ]
    named: list[tuple[str, Winner | None]] = [("best", outcome.best)]
    if outcome.best_composed != outcome.best:
        named.append(("best composed", outcome.best_composed))
    for label, winner in named:
        if winner is None:
            continue
        lo, hi = winner.speedup_ci95
        lines.append(
            f"{label}: {winner.standing.name} ({winner.kind}), {winner.verdict}: "
            f"{winner.speedup:.3f}x the best baseline ({lo:.3f}-{hi:.3f})"
        )
        if winner.digest in paths:
            lines.append(f"recipe: {paths[winner.digest]}")
    return lines

"""What the trials of a study say together: progress, trade-offs, failures, what matters."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thunder_tune.dashboards.trial_table import ABSENT, TrialTable
from thunder_tune.storage import TrialOutline

LEAST_TRIALS = 5
"""Measured trials below which nothing is said about dimensions."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one cause: how they are told, how many, and the first trials' numbers."""

    kind: str
    cause: str
    times: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChoiceEffect:
    """What was measured with one choice: trials, the best and the median latency."""

    choice: str
    trials: int
    best_ms: float
    median_ms: float


@dataclass(frozen=True, slots=True)
class DimensionEffect:
    """How much of the variance of log latency a dimension's choices alone explain, 0 to 1."""

    dimension: str
    share: float
    choices: tuple[ChoiceEffect, ...]


def measured(table: TrialTable, role: str = "search") -> Sequence[TrialOutline]:
    """Return the complete trials of one role that have a latency."""
    return table.measured.get(role, [])


def best(rows: Sequence[TrialOutline]) -> TrialOutline | None:
    """Return the fastest of measured trials."""
    return min(rows, key=_latency, default=None)


def improvements(rows: Sequence[TrialOutline]) -> list[TrialOutline]:
    """Return the trials that were the fastest so far."""
    found: list[TrialOutline] = []
    for row in rows:
        if not found or _latency(row) < _latency(found[-1]):
            found.append(row)
    return found


def front(rows: Sequence[TrialOutline]) -> list[TrialOutline]:
    """Return the trials that no other beats in both latency and error, fastest first."""
    judged = [r for r in rows if r.error_ratio is not None and math.isfinite(r.error_ratio)]
    if not judged:
        return []
    latency = np.fromiter((_latency(r) for r in judged), np.float64, len(judged))
    error = np.fromiter((_error(r) for r in judged), np.float64, len(judged))
    order = np.lexsort((error, latency))  # by latency, and of equal ones by error
    in_order = error[order]
    least_before = np.minimum.accumulate(np.concatenate(([math.inf], in_order[:-1])))
    return [judged[i] for i in order[in_order < least_before]]


def thinned(rows: Sequence[TrialOutline], at_most: int) -> list[TrialOutline]:
    """Return evenly chosen rows, so that a chart of many trials stays small."""
    step = max(1, math.ceil(len(rows) / at_most))
    return list(rows[::step])


def counts(table: TrialTable) -> Counter[str]:
    """Count search trials by state."""
    return Counter(row.state for row in table.rows if row.role == "search")


def failures(table: TrialTable) -> list[FailureGroup]:
    """Group failures by cause, the most frequent first."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in table.rows:
        if row.failure_kind:
            groups[row.failure_kind, row.failure_cause].append(row.number)
    found = [
        FailureGroup(kind, cause, len(numbers), tuple(numbers[:20]))
        for (kind, cause), numbers in groups.items()
    ]
    return sorted(found, key=lambda group: -group.times)


def effects(table: TrialTable) -> list[DimensionEffect]:
    """Tell what each dimension's choices do to the latency, what matters most first.

    The share is the correlation ratio (eta squared) of the logarithm of the latency: the variance
    between choices divided by all variance. It sees one dimension at a time, no interactions.
    """
    chosen = [
        i
        for i, row in enumerate(table.rows)
        if row.role == "search" and row.state == "complete" and row.latency_ms
    ]
    if len(chosen) < LEAST_TRIALS:
        return []
    index = np.asarray(chosen)
    latency = np.asarray([table.rows[i].latency_ms for i in chosen], dtype=np.float64)
    found = []
    for name, column in table.codes.items():
        effect = _effect(name, table.choices[name], np.asarray(column[:])[index], latency)
        if effect is not None:
            found.append(effect)
    return sorted(found, key=lambda effect: -effect.share)


def _effect(
    name: str, choices: Sequence[str], codes: np.ndarray, latency: np.ndarray
) -> DimensionEffect | None:
    has = codes != ABSENT
    codes, latency = codes[has], latency[has]
    present = np.flatnonzero(np.bincount(codes)).tolist()
    if len(present) < 2:
        return None
    log = np.log(latency)
    total = float(((log - log.mean()) ** 2).sum())
    between, found = 0.0, []
    for code in present:
        own = codes == code
        between += float(own.sum()) * float(log[own].mean() - log.mean()) ** 2
        times = latency[own]
        found.append(
            ChoiceEffect(
                choices[code], int(own.sum()), float(times.min()), float(np.median(times))
            )
        )
    share = between / total if total > 0 else 0.0
    return DimensionEffect(name, share, tuple(sorted(found, key=lambda c: c.median_ms)))


def _latency(row: TrialOutline) -> float:
    return math.inf if row.latency_ms is None else row.latency_ms


def _error(row: TrialOutline) -> float:
    return math.inf if row.error_ratio is None else row.error_ratio

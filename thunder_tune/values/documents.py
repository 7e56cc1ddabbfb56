"""JSON documents of the values: the shapes that the command line and the web API share.

JSON has no infinity and no NaN: either becomes null.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from thunder_tune.values.comparison import Comparison, Standing
from thunder_tune.values.program import Program
from thunder_tune.values.trial import Failure, TrialResult

Document = dict[str, Any]


def baseline_document(
    name: str, standing: Standing | None, result: TrialResult | None = None
) -> Document:
    """Return a baseline as confirmed; its first call is that of the study, with cold caches."""
    failure = standing.failure if standing else None
    if standing is None and result is not None:
        failure = result.failure
    first_call_s = (result.first_call_s if result else None) or (
        standing.first_call_s if standing else None
    )
    missing = None
    if standing is None:
        missing = "not measured" if result is None else "not confirmed"
    return {
        "name": name,
        **measured_document(standing),
        "first_call_s": number(first_call_s),
        "failure": failure_text(failure) or missing,
    }


def program_document(program: Program) -> Document:
    """Return a program's ops and classes."""
    return {
        "front_end": program.front_end,
        "hash": program.hash,
        "ops": [
            {"index": op.index, "name": op.name, "kind": op.kind, "class": op.class_id}
            for op in program.ops
        ],
        "classes": [
            {"id": c.id, "kind": c.kind, "count": c.count, "ops": list(c.ops)}
            for c in (*program.classes, *program.site_classes)
        ],
    }


def failure_text(failure: Failure | None) -> str:
    """Write a failure as one line: its kind, then what happened."""
    return f"{failure.kind}: {failure.message}" if failure else ""


def failure_groups(results: Sequence[TrialResult]) -> list[tuple[Failure, int]]:
    """Group failures of one cause; each with its first example, the most frequent first."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for result in results:
        if result.failure is not None:
            key = (result.failure.kind, result.failure.group or result.failure.message)
            groups.setdefault(key, []).append(result.failure)
    return sorted(((g[0], len(g)) for g in groups.values()), key=lambda pair: -pair[1])


def disturbances(comparison: Comparison) -> dict[str, int]:
    """Return in how many processes each mark of a disturbance was seen."""
    return dict(Counter(mark for round_ in comparison.rounds for mark in round_.marks))


def standing_of(comparison: Comparison | None, name: str) -> Standing | None:
    """Return what a comparison says of one contender, or None."""
    if comparison is None:
        return None
    return next((s for s in comparison.standings if s.name == name), None)


def measured_document(standing: Standing | None) -> Document:
    """Return the numbers that a comparison has for one contender."""
    accuracy = standing.accuracy if standing else None
    return {
        "latency_ms": number(standing.latency_ms) if standing else None,
        "ci95_ms": pair(standing.ci95_ms) if standing else None,
        "error_ratio": number(accuracy.error_ratio) if accuracy else None,
        "peak_memory_bytes": standing.peak_memory_bytes if standing else None,
    }


def number(value: float | None) -> float | None:
    """Return a number that JSON can hold: neither infinity nor NaN."""
    return value if value is not None and math.isfinite(value) else None


def pair(values: tuple[float, float] | None) -> list[float | None] | None:
    """Return an interval that JSON can hold."""
    return [number(v) for v in values] if values else None

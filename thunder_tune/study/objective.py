"""What a study minimises."""

from __future__ import annotations

from thunder_tune.values.trial import TrialResult


def latency_of(result: TrialResult) -> float | None:
    """Return the objective, the latency in milliseconds; None unless complete."""
    if result.state != "complete" or result.timing is None:
        return None
    return result.timing.latency_ms

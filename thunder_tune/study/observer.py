"""The seam between a study and whoever shows its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from thunder_tune.values.comparison import Round
from thunder_tune.values.job import Description
from thunder_tune.values.study import TrialCounts
from thunder_tune.values.trial import TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a study stands.

    Attributes:
        stage: "describe", "baselines", "screening", "search", "confirmation" or "done".
        counts: Search trials by outcome.
        best_ms: Best search-time latency of a complete candidate.
        best_baseline_ms: Best search-time latency of a baseline.
        elapsed_s: Seconds since the study (this run of it) began.
        left_s: Estimated seconds to its end, confirmation included; None where unknown.
    """

    stage: str
    counts: TrialCounts
    best_ms: float | None = None
    best_baseline_ms: float | None = None
    elapsed_s: float = 0.0
    left_s: float | None = None


class Observer(Protocol):
    """Told what a study does, from the controller's thread; must not block or raise."""

    def on_status(self, status: Status) -> None:
        """Note where the study stands; called at every change and about once a second."""

    def on_description(self, description: Description) -> None:
        """Note what a worker found out about the model."""

    def on_result(self, number: int, result: TrialResult) -> None:
        """Note a finished baseline or trial and its number in the study."""

    def on_round(self, index: int, total: int, round_: Round) -> None:
        """Note a finished round of the confirmation; `index` counts from 0."""

    def on_notice(self, text: str) -> None:
        """Note one sentence the user should read."""

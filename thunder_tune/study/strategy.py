"""The seam between a study and what decides which candidate comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from thunder_tune.values.screening import ClassMeasurement
from thunder_tune.values.trial import Candidate, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A candidate to measure, and the ticket under which its outcome is told."""

    ticket: int
    candidate: Candidate


class Strategy(Protocol):
    """Proposes candidates and learns from their outcomes; used by one controller thread.

    Any number of proposals may be pending. No plan is proposed twice, failed ones included.
    """

    def ask(self) -> Proposal | None:
        """Return a candidate whose plan was never proposed; None: the space is exhausted."""

    def tell(self, ticket: int, number: int, result: TrialResult) -> None:
        """Learn the outcome of a proposal, which is trial `number` of the study."""

    def screened(self, measurements: Sequence[ClassMeasurement]) -> None:
        """Learn what classes take alone, once, as soon as that is known."""

    def postpone(self, ticket: int) -> None:
        """Take back a proposal that was not finished: the next run of the study measures it."""

    def catch_up(self) -> bool:
        """Do a part of what can wait while candidates are measured; returns if there is more."""

"""An observer that says nothing, to derive from or to run studies quietly."""

from __future__ import annotations

from thunder_tune.study.observer import Status
from thunder_tune.values.comparison import Round
from thunder_tune.values.job import Description
from thunder_tune.values.trial import TrialResult


class SilentObserver:
    """Implements `thunder_tune.study.observer.Observer` by doing nothing."""

    def on_status(self, status: Status) -> None:
        """Do nothing."""

    def on_description(self, description: Description) -> None:
        """Do nothing."""

    def on_result(self, number: int, result: TrialResult) -> None:
        """Do nothing."""

    def on_round(self, index: int, total: int, round_: Round) -> None:
        """Do nothing."""

    def on_notice(self, text: str) -> None:
        """Do nothing."""

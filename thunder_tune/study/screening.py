"""The screening of a study: which classes are still to be measured alone, in which jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from thunder_tune.study.budget import Budget
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.job import Description, Setting
from thunder_tune.values.screening import (
    ClassMeasurement,
    Screening,
    ScreenJob,
    class_choices,
    missing_choices,
)

CLASSES_PER_JOB = 4
"""Few, so that the lanes share the work evenly and a job that dies takes little with it."""
LARGEST_SHARE = 0.2
"""Of the time that is left for the search when it begins."""


class Screener:
    """Hands out jobs until every class is measured, or its share of the time is used up.

    Args:
        setting: Of the study.
        description: Its program, space and machine.
        known: What was measured on this machine before, by any study.
        budget: Of the run.

    Attributes:
        known: With what this run has measured.
    """

    def __init__(
        self,
        setting: Setting,
        description: Description,
        *,
        known: Sequence[ClassMeasurement],
        budget: Budget,
    ) -> None:
        self.known = list(known)
        self._budget = budget
        self._until_s: float | None = None
        wanted = class_choices(description.space)
        missing = missing_choices(description.space, self.known)
        self._reused = sum(map(len, wanted.values())) - sum(map(len, missing.values()))
        self._measured = self._failed = 0
        self._problem = ""
        fuser = next((c for choices in wanted.values() for c in choices if c in FUSERS), "torch")
        items = list(missing.items())
        self._jobs = deque(
            ScreenJob(setting=setting, choices=dict(items[i : i + CLASSES_PER_JOB]), fuser=fuser)
            for i in range(0, len(items), CLASSES_PER_JOB)
        )

    def next_job(self) -> ScreenJob | None:
        """Return the next classes to measure, or None: there are no more, or no time for them."""
        if self._until_s is None:
            left_s = self._budget.search_left_s
            share_s = float("inf") if left_s is None else LARGEST_SHARE * left_s
            self._until_s = self._budget.elapsed_s + share_s
        if not self._jobs or self._budget.elapsed_s >= self._until_s:
            return None
        return self._jobs.popleft()

    def learn(self, screening: Screening) -> None:
        """Note what came of a job."""
        self.known += screening.measurements
        self._measured += len(screening.measurements)
        self._failed += sum(m.latency_ms is None for m in screening.measurements)
        if screening.failure is not None:
            self._problem = screening.failure.message

    def summary(self) -> str:
        """Return one sentence for the user, or "" where there was nothing to measure."""
        parts = [f"{self._measured} measured now"] if self._measured else []
        parts += [f"{self._reused} known from before"] if self._reused else []
        parts += [f"{self._failed} failed"] if self._failed else []
        left = sum(len(c) for job in self._jobs for c in job.choices.values())
        parts += [f"{left} left out for want of time"] if left else []
        parts += [f"a job failed: {self._problem}"] if self._problem else []
        return f"choices of classes alone: {', '.join(parts)}" if parts else ""

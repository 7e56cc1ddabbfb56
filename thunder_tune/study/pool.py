"""The seam between a study and whoever runs its candidates."""

from __future__ import annotations

from typing import Protocol

from thunder_tune.values.comparison import Round
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import TrialResult


class WorkerPool(Protocol):
    """Runs jobs on devices; used by one controller thread, but for `compare`.

    A candidate's fault comes back as a `TrialResult` with a `Failure`; a method raises only when
    the pool itself is broken (`WorkerError`). Values go in and out by value. `close` may be called
    at any time, twice too, and leaves no process behind.
    """

    @property
    def capacity(self) -> int:
        """Number of jobs that can be under way at once; they take turns at their device."""

    def describe(self, job: DescribeJob) -> Description:
        """Capture the model on a worker and return its program and search space."""

    def submit(self, job: MeasureJob | ScreenJob) -> int:
        """Start a job on a free worker, or queue it; returns a ticket."""

    def wait(self, timeout_s: float) -> list[tuple[int, TrialResult | Screening]]:
        """Return the jobs finished since the last call, waiting for the first of them.

        An empty list says that none finished within `timeout_s` seconds.
        """

    def compare(self, job: CompareJob, timeout_s: float) -> Round:
        """Run one round of a comparison in a fresh process on one device; from any thread.

        A contender that fails, or that takes the process down, is in `Round.failures`; the
        others are measured all the same. Contenders not reached within `timeout_s` seconds have
        a failure of kind "timeout".
        """

    def cancel(self) -> None:
        """Kill what is running; finished results stay available to `wait`."""

    def close(self) -> None:
        """Stop all workers and their processes."""

"""The Ray actor: holds a device for a child process and never touches it itself."""

from __future__ import annotations

import os

import ray

from thunder_tune.__about__ import __version__
from thunder_tune.values.comparison import Round
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import TrialResult
from thunder_tune.workers.child_process import ChildOptions
from thunder_tune.workers.team import Arrival
from thunder_tune.workers.trial_child import TrialChild

CONTROL = "control"
"""Concurrency group of the calls that reach the actor while a job runs."""


class TrialActor:
    """Runs jobs in a child process that inherits the device which Ray gave to this actor."""

    def __init__(self, options: ChildOptions) -> None:
        self._child = TrialChild(options)

    def identify(self, job: DescribeJob, epoch: int) -> Fingerprint | None:
        """Say what results here depend on; see `TrialChild`."""
        return self._child.identify(job, epoch)

    def describe(self, job: DescribeJob, epoch: int) -> Description:
        """Describe a model; see `TrialChild`."""
        return self._child.describe(job, epoch)

    def measure(self, job: MeasureJob, epoch: int) -> TrialResult:
        """Measure a candidate."""
        return self._child.measure(job, epoch)

    def screen(self, job: ScreenJob, epoch: int) -> Screening:
        """Measure classes alone."""
        return self._child.screen(job, epoch)

    def compare(self, job: CompareJob, timeout_s: float, epoch: int) -> Round:
        """Run a round of a comparison."""
        return self._child.compare(job, timeout_s, epoch)

    @ray.method(concurrency_group=CONTROL)
    def ready(self) -> Arrival:
        """Say where this is, once it runs."""
        node: str = ray.get_runtime_context().get_node_id()
        return Arrival(process_id=os.getpid(), node=node, version=__version__)

    @ray.method(concurrency_group=CONTROL)
    def cancel(self, epoch: int) -> None:
        """End the running job if it is of an earlier epoch."""
        self._child.cancel(epoch)

    @ray.method(concurrency_group=CONTROL)
    def close(self) -> None:
        """End the running job and its processes."""
        self._child.close()

"""A worker in a Ray actor, on whichever machine Ray puts it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray as typed_ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from thunder_tune.__about__ import __version__
from thunder_tune.errors import WorkerError
from thunder_tune.values.comparison import Round
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob, Setting
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import TrialResult
from thunder_tune.workers.actor import CONTROL, TrialActor
from thunder_tune.workers.child_process import ChildOptions
from thunder_tune.workers.team import Arrival, Team
from thunder_tune.workers.trial_child import JobCancelled

ray: Any = typed_ray  # its annotations miss concurrency groups, and half of it has none

_CONTROL_S = 15.0
"""For an actor to answer a call of its control group."""


class RayWorker:
    """A worker whose `TrialChild` lives in a Ray actor."""

    def __init__(
        self,
        options: ChildOptions,
        *,
        device: str,
        start_s: float,
        lanes: int = 1,
        placement: Mapping[str, Any] | None = None,
        team: Team | None = None,
    ) -> None:
        """Ask Ray for the actor; `await_ready` tells when it runs.

        Args:
            options: For its children.
            device: "cuda" for a GPU, or one lane of it; "cpu" for one CPU slot.
            lanes: Actors that share a GPU.
            start_s: Seconds that Ray has to start it.
            placement: Further options of the actor that say where it may be.
            team: Decides whether it may work where it is; None: wherever it is.
        """
        self._options = options
        self._start_s = start_s
        self._team = team
        # A GPU's actor must not need a free CPU too: another node's slots may be taken.
        gpu = {"num_gpus": 1 / lanes, "num_cpus": 0}
        resources = gpu if device == "cuda" else {"num_cpus": 1}
        wanted = {"concurrency_groups": {CONTROL: 1}, **resources, **(placement or {})}
        self._remote = ray.remote(**wanted)(TrialActor)
        self._actor = self._remote.remote(options)
        self._is_ready = False
        self._arrival: Arrival | None = None

    def await_ready(self, *, is_patient: bool = False) -> None:
        """Wait until the actor runs.

        Args:
            is_patient: Wait without end, for a machine that may join.

        Raises:
            WorkerError: It does not within its time, most often because nothing is free, or has
                another version of thunder-tune.
        """
        limit_s = None if is_patient else self._start_s
        try:
            arrival: Arrival = ray.get(self._actor.ready.remote(), timeout=limit_s)
            if arrival.version != __version__:
                raise WorkerError(
                    f"{self._options.name} did not start: node {arrival.node} has thunder-tune "
                    f"{arrival.version}, here is {__version__}: install the same there"
                )
            self._arrival, self._is_ready = arrival, True
        except GetTimeoutError as error:
            raise WorkerError(
                f"{self._options.name} did not start within {self._start_s:.3g} s: "
                "Ray has no free device for it"
            ) from error
        except RayError as error:
            raise WorkerError(
                f"{self._options.name} did not start: {first_line(error)}"
            ) from error

    def describe(self, job: DescribeJob, epoch: int) -> Description:
        """Describe a model."""
        self._join_team(job.setting, epoch)
        description: Description = self._call("describe", job, epoch)
        return description

    def measure(self, job: MeasureJob, epoch: int) -> TrialResult:
        """Measure a candidate."""
        self._join_team(job.setting, epoch)
        result: TrialResult = self._call("measure", job, epoch)
        return result

    def screen(self, job: ScreenJob, epoch: int) -> Screening:
        """Measure classes alone."""
        self._join_team(job.setting, epoch)
        screening: Screening = self._call("screen", job, epoch)
        return screening

    def compare(self, job: CompareJob, timeout_s: float, epoch: int) -> Round:
        """Run a round of a comparison."""
        self._join_team(job.setting, epoch)
        round_: Round = self._call("compare", job, timeout_s, epoch)
        return round_

    def cancel(self, epoch: int) -> None:
        """End the running job; an actor that does not answer is killed, and its child with it."""
        try:
            ray.get(self._actor.cancel.remote(epoch), timeout=_CONTROL_S)
        except RayError:
            self._kill()

    def restart(self) -> None:
        """Ask Ray for another actor, on whichever node has a free device.

        Raises:
            WorkerError: None has.
        """
        self._kill()
        try:
            self._actor = self._remote.remote(self._options)
        except (RayError, RuntimeError) as error:
            raise WorkerError(
                f"{self._options.name} cannot be restarted: {first_line(error)}"
            ) from error
        self.await_ready()

    def close(self) -> None:
        """End the actor, its running job and all its processes."""
        if not ray.is_initialized():
            return
        if self._is_ready:
            with suppress(RayError):
                ray.get(self._actor.close.remote(), timeout=_CONTROL_S)
        self._kill()

    def _join_team(self, setting: Setting, epoch: int) -> None:
        """Before its first job: make sure that its results will compare with the others'."""
        arrival = self._arrival
        if self._team is None or arrival is None:
            return
        found: Fingerprint | None = self._call("identify", DescribeJob(setting=setting), epoch)
        if found is not None:  # else the job will tell what is wrong
            self._team.admit(self._options.name, arrival.node, found)
            self._arrival = None

    def _call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - the method's own
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments))
        except JobCancelled:
            raise JobCancelled("the job was cancelled") from None
        except RayTaskError as error:
            raise WorkerError(first_line(error.cause)) from error
        except RayError as error:
            raise WorkerError(f"{self._options.name} died: {first_line(error)}") from error

    def _kill(self) -> None:
        self._is_ready = False
        with suppress(RayError, RuntimeError, ValueError):
            ray.kill(self._actor, no_restart=True)


def first_line(error: object) -> str:
    """Return the first line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

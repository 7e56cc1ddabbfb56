"""One worker's child processes: jobs in, values out, whatever the child does.

A child that hangs, eats the machine's memory, sends nonsense or dies becomes a `Failure`. It is
kept between composed candidates while healthy; whole-program back ends leave state behind in
Dynamo, so each of them, and each round of a comparison, has a process of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from thunder_tune.errors import WorkerError
from thunder_tune.values.comparison import NOT_REACHED, Round
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob, Setting
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.trial import Failure, TrialResult
from thunder_tune.workers.child_process import ChildOptions, ChildProcess
from thunder_tune.workers.conversation import Done, converse
from thunder_tune.workers.phase_watch import PhaseWatch, host_memory_limit
from thunder_tune.workers.protocol import Message
from thunder_tune.workers.undescribed import undescribed

T = TypeVar("T")

_GRACE_S = 5.0
"""For a comparison to end by itself once its time is over: one block and the answer."""

_NOT_ITS_FAULT = ("crash", "start")
"""How a process fails that dies before it has anything to do with a model or a candidate."""
_STARTS = 2
"""So often is a job given to a process where the first fails so."""
_CORES_FOR_STANDBY = 3
"""Cores for each worker from which on the next process may import its modules meanwhile: on a
smaller machine that would disturb what is being timed."""


class JobCancelled(WorkerError):
    """The pool cancelled the job, so it has no result."""


class TrialChild:
    """Runs the jobs of one worker, one at a time, each in a child process.

    One thread runs jobs; `cancel` and `close` may come from another. A job carries the *epoch* it
    was submitted in, and `cancel(epoch)` ends the jobs of all earlier epochs: a job that has not
    arrived yet is refused as surely as one that runs is killed. Both raise `JobCancelled` in the
    thread that runs the job.
    """

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self._child: ChildProcess | None = None
        self._standby: tuple[str, ChildProcess] | None = None
        self._setting: Setting | None = None
        self._lock = threading.RLock()
        self._busy = False
        self._epoch = 0
        self._closed = False
        with suppress(WorkerError):  # the first job will find out and say so
            self._stand_by(options.log_folder)

    def identify(self, job: DescribeJob, epoch: int = 0) -> Fingerprint | None:
        """Say what results here depend on; None: the child failed, as the next job will tell."""
        return self._run(Message.of("identify", job), Fingerprint, job.setting, epoch).value

    def describe(self, job: DescribeJob, epoch: int = 0) -> Description:
        """Describe the model; a fault of the child is in `Description.failure`."""
        done = self._run(Message.of("describe", job), Description, job.setting, epoch)
        if done.value is None:
            return undescribed(done.logged(done.failure))
        return replace(done.value, failure=done.logged(done.value.failure))

    def measure(self, job: MeasureJob, epoch: int = 0) -> TrialResult:
        """Measure one candidate; a fault of the child is in `TrialResult.failure`."""
        alone = job.candidate.assignment.get(PROGRAM, COMPOSED) != COMPOSED
        started_at, started = time.time(), time.monotonic()
        message = Message.of("measure", job)
        done = self._run(message, TrialResult, job.setting, epoch, alone=alone)
        result = done.value or TrialResult(
            candidate=job.candidate,
            role=job.role,
            state="failed",
            failure=done.failure,
            phase_s=done.phase_s,
        )
        phase_s = dict(result.phase_s)
        if "start" in done.phase_s:  # which the child cannot time
            phase_s["start"] = done.phase_s["start"]
        if (waited_s := done.phase_s.get("wait", 0.0)) > phase_s.get("wait", 0.0):
            phase_s["wait"] = waited_s  # a child that is stopped between phases does not know it
        return replace(
            result,
            failure=done.logged(result.failure),
            phase_s=phase_s,
            overhead_s=max(0.0, time.monotonic() - started - sum(phase_s.values())),
            worker=self._options.name,
            process_id=done.process_id,
            started_at=started_at,
        )

    def screen(self, job: ScreenJob, epoch: int = 0) -> Screening:
        """Measure classes alone; a fault of the child is in `Screening.failure`."""
        done = self._run(Message.of("screen", job), Screening, job.setting, epoch)
        found = done.value or Screening(failure=done.failure)
        return replace(found, failure=done.logged(found.failure))

    def compare(self, job: CompareJob, timeout_s: float, epoch: int = 0) -> Round:
        """Run one round; anew, as long as there is time, without who took the process down."""
        deadline = time.monotonic() + timeout_s
        waiting = {contender.name: contender for contender in job.contenders}
        failures: dict[str, Failure] = {}
        rest = _not_reached(timeout_s)
        while waiting:
            left = replace(job, contenders=tuple(waiting.values()))
            message = Message.of("compare", left, deadline=deadline)
            done = self._run(
                message,
                Round,
                job.setting,
                epoch,
                alone=True,
                deadline=deadline,
                build_s=job.build_s,
            )
            if done.value is not None:
                own = {n: replace(f, log=done.log) for n, f in done.value.failures.items()}
                measured = {block.contender for block in done.value.blocks}
                missed = dict.fromkeys(waiting.keys() - measured, rest)
                return replace(done.value, failures={**failures, **missed, **own})
            failure = done.logged(done.failure) or rest
            blamed = waiting.pop(done.subject, None)
            if blamed is not None:
                failures[blamed.name] = failure
            if time.monotonic() >= deadline:
                break
            if blamed is None:
                rest = failure
                break
        return Round(
            process_id=0, blocks=(), failures={**dict.fromkeys(waiting, rest), **failures}
        )

    def cancel(self, epoch: int) -> None:
        """End the running job if it is of an earlier epoch, and refuse such jobs from now on."""
        with self._lock:
            self._epoch = max(self._epoch, epoch)
            if self._child is not None:
                self._child.kill()

    def restart(self) -> None:
        """Begin anew: the next job gets a fresh child."""
        with self._lock:
            self._discard()

    def close(self) -> None:
        """Kill the child, if any, and refuse jobs from now on; harmless when repeated."""
        with self._lock:
            self._closed = True
            if self._standby is not None:
                self._standby[1].close()
                self._standby = None
            if self._child is not None:
                self._child.kill()
                if not self._busy:
                    self._discard()

    def _run(
        self,
        message: Message,
        kind: type[T],
        setting: Setting,
        epoch: int,
        *,
        alone: bool = False,
        deadline: float | None = None,
        build_s: Mapping[str, float] | None = None,
    ) -> Done[T]:
        """Have a child answer one message; `alone`: in a process of its own."""
        watch = partial(
            PhaseWatch,
            setting.limits,
            deadline=None if deadline is None else deadline + _GRACE_S,
            build_s=build_s,
        )
        for _ in range(_STARTS):
            done = self._once(message, kind, setting, epoch, watch, alone=alone)
            if done.failure is None or (done.failure.kind, done.failure.phase) != _NOT_ITS_FAULT:
                break
        return done

    def _once(
        self,
        message: Message,
        kind: type[T],
        setting: Setting,
        epoch: int,
        watch: Callable[..., PhaseWatch],
        *,
        alone: bool,
    ) -> Done[T]:
        with self._lock:
            self._refuse_cancelled(epoch)
            child, since = self._prepare(setting, alone)
            self._busy = True
        healthy = False
        try:
            done = converse(
                child,
                message,
                kind,
                watch=watch(since=since),
                memory_limit_bytes=host_memory_limit(setting.limits, self._options.slots),
            )
            healthy = done.healthy and not alone
        finally:
            with self._lock:
                self._busy = False
                if not healthy:
                    self._discard()
        if done.value is None:
            self._refuse_cancelled(epoch)
        return done

    def _prepare(self, setting: Setting, alone: bool) -> tuple[ChildProcess, float]:
        """Return a child for the setting, and since when it is at work on the job."""
        child = self._child
        if child is not None and child.is_alive() and setting == self._setting and not alone:
            return child, time.monotonic()
        self._discard()
        folder = setting.log_folder or self._options.log_folder
        child, since = self._take_standby(folder)
        self._child, self._setting = child, setting
        self._stand_by(folder)
        return child, since

    def _stand_by(self, folder: str) -> None:
        """Let the next process import its modules meanwhile, where there are cores to spare."""
        if _cores_per_worker(self._options.slots) >= _CORES_FOR_STANDBY:
            self._standby = (folder, ChildProcess(self._options, folder))

    def _take_standby(self, folder: str) -> tuple[ChildProcess, float]:
        """Return the process that stands by, if it fits, or a new one; and since when it works."""
        ready, self._standby = self._standby, None
        if ready is not None:
            if ready[0] == folder and ready[1].is_alive():
                return ready[1], time.monotonic()
            ready[1].close()
        child = ChildProcess(self._options, folder)
        return child, child.started

    def _discard(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _refuse_cancelled(self, epoch: int) -> None:
        if self._closed or epoch < self._epoch:
            raise JobCancelled("the job was cancelled")


def _cores_per_worker(slots: int) -> int:
    return (os.cpu_count() or 1) // max(1, slots)


def _not_reached(timeout_s: float) -> Failure:
    return Failure(
        kind="timeout",
        phase="time",
        message=f"not reached within the {timeout_s:.3g} s of the comparison",
        group=NOT_REACHED,
    )

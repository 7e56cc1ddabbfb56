"""A pool of workers: one queue, one thread for each worker, jobs of a lost worker tried again."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from thunder_tune.errors import WorkerError
from thunder_tune.values.comparison import Round
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import Failure, TrialResult
from thunder_tune.workers.team import OtherMachine
from thunder_tune.workers.trial_child import JobCancelled

_JOIN_S = 10.0
_ATTEMPTS = 2


class Worker(Protocol):
    """Runs the jobs of one device: `TrialChild` here, or one elsewhere.

    `describe`, `measure`, `screen` and `compare` are called by one thread, the others by any.
    They raise `JobCancelled` for a job of an epoch that is over, `OtherMachine` where the worker
    must not be used, and any other `WorkerError` where the worker itself is lost.
    """

    def describe(self, job: DescribeJob, epoch: int) -> Description:
        """Describe a model."""

    def measure(self, job: MeasureJob, epoch: int) -> TrialResult:
        """Measure a candidate."""

    def screen(self, job: ScreenJob, epoch: int) -> Screening:
        """Measure classes alone."""

    def compare(self, job: CompareJob, timeout_s: float, epoch: int) -> Round:
        """Run a round of a comparison."""

    def cancel(self, epoch: int) -> None:
        """End the running job if it is of an earlier epoch, and refuse such jobs."""

    def restart(self) -> None:
        """Begin anew after a loss; raises WorkerError where that is impossible."""

    def close(self) -> None:
        """End the running job and all processes; harmless when repeated."""


@dataclass(eq=False)
class _Task:
    """A job in the pool."""

    ticket: int
    epoch: int
    run: Callable[[Worker, int], Any]
    when_lost: Callable[[Failure], Any]
    is_awaited: bool = False
    attempts: int = 0
    is_over: bool = False
    outcome: Any = None
    error: Exception | None = None


class SlotPool:
    """Implements `thunder_tune.study.pool.WorkerPool` over any workers.

    Jobs that `cancel` ends give no result, and `describe` or `compare` then raises
    `JobCancelled`. A job whose worker is lost is tried once more, then fails as "worker-lost";
    when no worker is left every call raises `WorkerError`.
    """

    def __init__(self, workers: Sequence[Worker] = ()) -> None:
        self._all_workers: list[Worker] = []
        self._workers: list[Worker] = []
        self._changed = threading.Condition()  # of a re-entrant lock: signal handlers call close
        self._queue: deque[_Task] = deque()
        self._running: set[_Task] = set()
        self._finished: list[_Task] = []
        self._tickets = itertools.count()
        self._epoch = 0
        self._broken: Exception | None = None
        self._is_closing = False
        self._threads: list[threading.Thread] = []
        atexit.register(self.close)
        for worker in workers:
            self.add(worker)

    def add(self, worker: Worker) -> None:
        """Take in a worker, which begins with what is queued; may be called at any time."""
        # A daemon: a controller that ends with an error must not wait for a job.
        thread = threading.Thread(target=self._serve, args=(worker,), daemon=True)
        with self._changed:
            if not self._is_closing:
                self._broken = None
                self._all_workers.append(worker)
                self._workers.append(worker)
                self._threads.append(thread)
                thread.start()
                self._changed.notify_all()
                return
        worker.close()

    @property
    def capacity(self) -> int:
        """Number of jobs that can run at once."""
        return len(self._workers)

    def describe(self, job: DescribeJob) -> Description:
        """Describe a model on the first free worker."""

        def lost(failure: Failure) -> Description:
            raise WorkerError(failure.message)

        def run(worker: Worker, epoch: int) -> Description:
            return worker.describe(job, epoch)

        outcome: Description = self._await(self._enqueue(run, lost))
        return outcome

    def submit(self, job: MeasureJob | ScreenJob) -> int:
        """Queue a candidate, or classes to measure alone; returns its ticket."""

        def lost(failure: Failure) -> TrialResult | Screening:
            if isinstance(job, ScreenJob):
                return Screening(failure=failure)
            return TrialResult(
                candidate=job.candidate, role=job.role, state="failed", failure=failure
            )

        def run(worker: Worker, epoch: int) -> TrialResult | Screening:
            if isinstance(job, ScreenJob):
                return worker.screen(job, epoch)
            return worker.measure(job, epoch)

        return self._enqueue(run, lost, is_awaited=True).ticket

    def wait(self, timeout_s: float) -> list[tuple[int, TrialResult | Screening]]:
        """Return what finished; at once where nothing is queued or running."""
        with self._changed:
            self._changed.wait_for(self._has_news, timeout_s)
            finished, self._finished = self._finished, []
        return [(task.ticket, _outcome(task)) for task in finished]

    def compare(self, job: CompareJob, timeout_s: float) -> Round:
        """Run one round on the first free worker; waiting for it counts."""
        deadline = time.monotonic() + timeout_s

        def lost(failure: Failure) -> Round:
            failures = dict.fromkeys((c.name for c in job.contenders), failure)
            return Round(process_id=0, blocks=(), failures=failures)

        def run(worker: Worker, epoch: int) -> Round:
            return worker.compare(job, max(0.0, deadline - time.monotonic()), epoch)

        outcome: Round = self._await(self._enqueue(run, lost))
        return outcome

    def cancel(self) -> None:
        """Kill what runs and forget what is queued; the pool takes new jobs at once."""
        with self._changed:
            self._epoch += 1
            epoch, workers = self._epoch, list(self._workers)
            for task in self._queue:
                task.error = JobCancelled("the job was cancelled")
                task.is_over = True
            self._queue.clear()
            self._changed.notify_all()
        for worker in workers:
            worker.cancel(epoch)
        with self._changed:
            self._changed.wait_for(lambda: all(t.epoch >= epoch for t in self._running), _JOIN_S)

    def close(self) -> None:
        """Stop all workers and their processes."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for worker in self._all_workers:
            worker.close()
        for thread in self._threads:
            thread.join(_JOIN_S)
        atexit.unregister(self.close)

    # Below: the queue and the workers' threads.

    def _enqueue(
        self,
        run: Callable[[Worker, int], Any],
        when_lost: Callable[[Failure], Any],
        *,
        is_awaited: bool = False,
    ) -> _Task:
        with self._changed:
            if self._is_closing:
                raise WorkerError("the pool is closed")
            if self._broken is not None:
                raise WorkerError(f"no worker is left: {self._broken}")
            task = _Task(next(self._tickets), self._epoch, run, when_lost, is_awaited)
            self._queue.append(task)
            self._changed.notify_all()
            return task

    def _await(self, task: _Task) -> Any:  # noqa: ANN401 - the job's own type of result
        with self._changed:
            self._changed.wait_for(lambda: task.is_over)
        return _outcome(task)

    def _has_news(self) -> bool:
        return bool(self._finished) or not (self._queue or self._running)

    def _serve(self, worker: Worker) -> None:
        """Run jobs on one worker until the pool closes or the worker is lost for good."""
        while (task := self._next()) is not None:
            try:
                self._finish(task, task.run(worker, task.epoch))
            except JobCancelled as error:
                self._finish(task, error=error)
            except OtherMachine as error:
                self._dismiss(worker, task, error)
                return
            except WorkerError as error:
                self._retry(task, error)
                if not self._restart(worker):
                    return
            except Exception as error:  # a defect: for the controller to see, not for this thread
                self._finish(task, error=error)

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._queue)
            if self._is_closing:
                return None
            task = self._queue.popleft()
            self._running.add(task)
            return task

    def _finish(
        self,
        task: _Task,
        outcome: Any = None,  # noqa: ANN401 - the job's own type of result
        error: Exception | None = None,
    ) -> None:
        with self._changed:
            self._running.discard(task)
            task.outcome, task.error, task.is_over = outcome, error, True
            if task.is_awaited and not isinstance(error, JobCancelled):
                self._finished.append(task)
            self._changed.notify_all()

    def _retry(self, task: _Task, error: WorkerError) -> None:
        """Queue a lost job once more; the second time it has failed."""
        with self._changed:
            task.attempts += 1
            if task.epoch < self._epoch or self._is_closing:
                self._finish(task, error=JobCancelled("the job was cancelled"))
            elif task.attempts < _ATTEMPTS:
                self._running.discard(task)
                self._queue.appendleft(task)
                self._changed.notify_all()
            else:
                self._give_up(task, error)

    def _dismiss(self, worker: Worker, task: _Task, error: OtherMachine) -> None:
        """Go on without a worker whose results would not compare; its job is another's."""
        worker.close()
        with self._changed:
            if task.epoch < self._epoch or self._is_closing:
                self._finish(task, error=JobCancelled("the job was cancelled"))
            else:
                self._running.discard(task)
                self._queue.appendleft(task)
            self._lose(worker, error)

    def _restart(self, worker: Worker) -> bool:
        """Begin anew with a lost worker; False: it is gone, and perhaps the last one."""
        try:
            if not self._is_closing:
                worker.restart()
        except WorkerError as error:
            with self._changed:
                self._lose(worker, error)
            return False
        return True

    def _lose(self, worker: Worker, error: WorkerError) -> None:
        self._workers.remove(worker)
        if not self._workers:
            self._broken = error
            while self._queue:
                self._give_up(self._queue.popleft(), error)
        self._changed.notify_all()

    def _give_up(self, task: _Task, error: WorkerError) -> None:
        failure = Failure(
            kind="worker-lost",
            phase="start",
            message=f"the worker was lost: {error}",
            group="the worker was lost",
        )
        try:
            self._finish(task, task.when_lost(failure))
        except WorkerError as lost:
            self._finish(task, error=lost)


def _outcome(task: _Task) -> Any:  # noqa: ANN401 - the job's own type of result
    if task.error is None:
        return task.outcome
    if isinstance(task.error, WorkerError):
        raise task.error
    raise WorkerError(f"the pool is broken: {task.error}") from task.error

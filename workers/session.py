"""The child's answers: describe a model, measure a candidate, run a round of a comparison."""

from __future__ import annotations

import errno
import gc
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from thunder_tune.compiler import viability
from thunder_tune.compiler.autotuning import time_alone
from thunder_tune.compiler.backends import unavailable_reason
from thunder_tune.executors.kernels.alone import hold_with
from thunder_tune.machine import current_fingerprint
from thunder_tune.measure.host_pace import BUSY_MARK
from thunder_tune.measure.steps import Step
from thunder_tune.measure.timing import time_step
from thunder_tune.program import model_key
from thunder_tune.search_spaces import build_space
from thunder_tune.values.comparison import Round
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import (
    CompareJob,
    DescribeJob,
    Description,
    Job,
    MeasureJob,
    Setting,
)
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import Failure, Timing, TrialResult
from thunder_tune.workers.attempt import Attempt
from thunder_tune.workers.comparison import run_round
from thunder_tune.workers.containment import contained
from thunder_tune.workers.failures import FAULTS, classify, is_sticky
from thunder_tune.workers.screening import screen
from thunder_tune.workers.undescribed import undescribed
from thunder_tune.workers.workbench import PhaseClock, Workbench

if TYPE_CHECKING:
    from thunder_tune.workers.trial_process import Tell

logger = logging.getLogger(__name__)

_SHARE_FOR_ONE = 0.4
"""Of the time that timing may take: a second timing begins if the first took no more."""
_LEAK_SHARE = 0.05
"""Of the device's memory: a child that keeps more than this after a candidate is replaced."""


class TrialSession:
    """Keeps one workbench for as long as the setting stays the same.

    Attributes:
        is_spent: A CUDA fault makes every further call in this process fail, or the candidates
            before have left too much behind: memory, processes, temporary files.
    """

    def __init__(self) -> None:
        self.is_spent = False
        self._bench: Workbench | None = None
        self._idle_bytes = 0
        self._is_settled = False

    def identify(self, job: DescribeJob) -> Fingerprint:
        """Say what results here depend on: machine and versions."""
        return current_fingerprint(job.setting.source.device)

    def describe(self, job: DescribeJob, tell: Tell) -> Description:
        """Capture the model, check that it can be judged, and build its search space."""
        clock = _clock(job, tell)
        setting, source = job.setting, job.setting.source
        try:
            bench = self._workbench(setting, clock)
            captured = bench.capture(clock)
            with clock.during("capture"):
                space = build_space(
                    captured.program,
                    source=source,
                    policy=setting.policies[0],
                    preset=setting.preset,
                    viable=viability(captured, source.device),
                    back_end_reason=partial(unavailable_reason, device=source.device),
                )
        except FAULTS as error:
            return undescribed(self._fault(error, classify(error, clock.phase)))
        return Description(
            program=captured.program,
            space=space,
            fingerprint=self.identify(job),
            capture_s=captured.seconds,
            signature=captured.signature,
            model_key=model_key(bench.model, captured.signature),
            notes=bench.notes,
        )

    def measure(self, job: MeasureJob, tell: Tell) -> TrialResult:
        """Build, judge and time one candidate."""
        clock = _clock(job, tell)
        attempt = Attempt(job.candidate.assignment, clock)
        timing: Timing | None = None
        failure: Failure | None = None
        try:
            bench = self._workbench(job.setting, clock)
            with contained(self._spend):
                step = attempt.run(bench)
                with clock.during("time"):
                    timing = _time(step, bench)
        except FAULTS as error:
            failure = self._fault(error, attempt.failure(error))
        attempt.close()
        self._tidy(failed=failure is not None)
        self._settle()
        return TrialResult(
            candidate=job.candidate,
            role=job.role,
            state="complete" if failure is None else "failed",
            timing=timing,
            accuracy=attempt.accuracy,
            failure=failure,
            peak_memory_bytes=attempt.peak_memory_bytes,
            releasable_bytes=attempt.releasable_bytes,
            first_call_s=attempt.first_call_s,
            applied=attempt.applied,
            phase_s=clock.seconds,
            captures=self._bench.captures if self._bench else 0,
        )

    def screen(self, job: ScreenJob, tell: Tell) -> Screening:
        """Measure choices of classes alone; see `thunder_tune.workers.screening`."""
        clock = _clock(job, tell)
        try:
            bench = self._workbench(job.setting, clock)
            with contained(self._spend):
                found = screen(job, bench, clock)
        except FAULTS as error:
            found = Screening(failure=self._fault(error, classify(error, clock.phase)))
        self._tidy(failed=found.failure is not None)
        self._settle()
        return found

    def compare(self, job: CompareJob, tell: Tell, deadline: float) -> Round:
        """Run one round; see `thunder_tune.workers.comparison`."""
        clock = _clock(job, tell)
        fresh = job.setting.source.seed + 1 + job.seed  # the search judges on the source's own
        return run_round(job, Workbench(job.setting, clock, seed=fresh), clock, deadline)

    def _workbench(self, setting: Setting, clock: PhaseClock) -> Workbench:
        """Return the workbench of a setting."""
        if self._bench is None or self._bench.setting != setting:
            self._bench = None
            gc.unfreeze()
            self._is_settled = False
            self._bench = Workbench(setting, clock, seed=setting.source.seed)
            self._idle_bytes = _allocated_bytes()
        return self._bench

    def _fault(self, error: BaseException, failure: Failure) -> Failure:
        """Log what was raised, and note whether this process can go on."""
        logger.info("%s", failure.message, exc_info=error)
        # No space: the folder for temporary files goes with the process.
        self.is_spent = self.is_spent or is_sticky(error) or _is_out_of_space(error)
        return failure

    def _spend(self) -> None:
        self.is_spent = True

    def _settle(self) -> None:
        """Take what is alive after a first candidate, half a million objects, for permanent.

        It is modules, the model and its capture. Each collection would look at all of it, in a
        fifth of a second, which is more than many a candidate takes to compile.
        """
        if not self._is_settled:
            gc.collect()
            gc.freeze()
            self._is_settled = True

    def _tidy(self, *, failed: bool) -> None:
        """Give memory back to the device; to be called when no exception is at hand any more."""
        if not _uses_cuda() or self.is_spent:
            if failed:
                gc.collect()
            return
        gc.collect()
        torch.cuda.empty_cache()
        left = _allocated_bytes() - self._idle_bytes
        _, total = torch.cuda.mem_get_info()
        self.is_spent = left > _LEAK_SHARE * total


def _time(step: Step, bench: Workbench) -> Timing:
    """Time a candidate; once more where the host was busy and the phase has time for it."""
    setting = bench.setting
    started = time.monotonic()

    def timed() -> Timing:
        return time_step(
            step, bench.timed_inputs, device=setting.source.device, request=setting.timing
        )

    first = timed()
    took_s = time.monotonic() - started
    if BUSY_MARK not in first.marks or took_s > _SHARE_FOR_ONE * setting.limits.time_s:
        return first
    second = timed()
    # A busy host makes calls slower, never faster.
    return min(first, second, key=lambda t: (BUSY_MARK in t.marks, t.latency_ms))


def _is_out_of_space(error: BaseException | None) -> bool:
    """Whether it was raised because of a full disk; compilers raise their own errors from such."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _allocated_bytes() -> int:
    return torch.cuda.memory_allocated() if _uses_cuda() else 0


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch has none


def _clock(job: Job | ScreenJob, tell: Tell) -> PhaseClock:
    """Return the clock of a job; what times kernels during it has the device to itself."""
    clock = PhaseClock(tell, job.setting.source.device)
    if job.setting.source.device == "cuda":
        time_alone()
        hold_with(clock.alone)
    return clock

"""One candidate in a child: built, called for the first time, judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import torch

from thunder_tune.compiler import Built, build
from thunder_tune.errors import ThunderTuneError
from thunder_tune.measure.accuracy import Rejected
from thunder_tune.measure.steps import Step
from thunder_tune.values.plan import Plan, resolve
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.trial import Accuracy, Failure, TensorAccuracy
from thunder_tune.workers.failures import classify, group_of
from thunder_tune.workers.undescribed import NO_PROGRAM
from thunder_tune.workers.workbench import PhaseClock, Workbench


class NotCaptured(ThunderTuneError):
    """A composed candidate of a model that no front end could capture."""


class NotApplied(ThunderTuneError):
    """A candidate that ran, but not as what it claims to be."""


class Attempt:
    """Builds and judges one candidate; what is known so far survives a failure.

    Attributes:
        step: Runs it once, after `run`.
        first_call_s: Seconds from the start of building to the first result.
        applied: Share of ops that run where the plan says.
        accuracy: As judged, also where it was judged wrong.
        peak_memory_bytes: Device memory that model, inputs and candidate need during a call.
        releasable_bytes: Of it, weights that are read in packed form only.
    """

    def __init__(
        self, assignment: Mapping[str, str], clock: PhaseClock, subject: str = ""
    ) -> None:
        self._assignment = assignment
        self._clock = clock
        self._subject = subject
        self._built: Built | None = None
        self.step: Step | None = None
        self.first_call_s: float | None = None
        self.applied: float | None = None
        self.accuracy: Accuracy | None = None
        self.peak_memory_bytes: int | None = None
        self.releasable_bytes = 0

    def run(self, bench: Workbench) -> Step:
        """Build, call and judge; returns the step, ready to be warmed up."""
        clock = self._clock
        plan = self._plan(bench)
        before = torch.cuda.memory_allocated() if bench.is_cuda else 0
        with clock.during("compile", self._subject):
            step = self._build(bench, plan)
            if self.applied is not None and self.applied < 1.0:
                raise NotApplied(
                    f"only {self.applied:.1%} of the ops run where the candidate says: "
                    "an executor refused the others"
                )
        with clock.during("check", self._subject):
            self._call_once_more(bench, step, before)
            try:
                self.accuracy = _finite(bench.judge.judge(step))
            except Rejected as error:
                self.accuracy = _finite(error.accuracy)
                raise
        self.step = step
        return step

    def failure(self, error: BaseException) -> Failure:
        """Turn what `run`, or a later call of the step, raised into a failure."""
        if isinstance(error, NotCaptured):
            return classify(error, "capture")
        if isinstance(error, Rejected):
            text = str(error)
            return Failure(kind=error.kind, phase="check", message=text, group=group_of(text))
        return classify(error, self._clock.phase)

    def close(self) -> None:
        """Drop what was built."""
        self.step = None
        if self._built is not None:
            self._built.close()
            self._built = None

    def _build(self, bench: Workbench, plan: Plan) -> Step:
        """Build the candidate and call it for the first time, which compiles it."""
        started = self._clock.now()
        capture = bench.capture(self._clock) if plan.is_composed else None
        built = self._built = build(bench.model, plan, capture)
        step = bench.step(built)
        step(bench.inputs)
        bench.synchronize()
        self.first_call_s = self._clock.now() - started
        self.applied = built.applied
        self.releasable_bytes = built.releasable_bytes
        return step

    def _plan(self, bench: Workbench) -> Plan:
        if self._assignment.get(PROGRAM, COMPOSED) != COMPOSED:
            return resolve(NO_PROGRAM, self._assignment)
        program = bench.capture(self._clock).program
        if not program.is_captured:
            raise NotCaptured(program.reason or "no front end could capture the model")
        return resolve(program, self._assignment)

    def _call_once_more(self, bench: Workbench, step: Step, before: int) -> None:
        """Call it compiled, and see how much device memory that needs beside the model's own."""
        if bench.is_cuda:
            torch.cuda.reset_peak_memory_stats()
        step(bench.inputs)
        bench.synchronize()
        if bench.is_cuda:
            extra = max(0, torch.cuda.max_memory_allocated() - before)
            self.peak_memory_bytes = bench.resident_bytes + extra


def _finite(accuracy: Accuracy | None) -> Accuracy | None:
    """Return an accuracy that JSON can carry: one with an infinite error says nothing more."""
    if accuracy is None:
        return None
    parts: tuple[Accuracy | TensorAccuracy, ...] = (accuracy, *accuracy.tensors)
    numbers = [getattr(part, f.name) for part in parts for f in fields(part)]
    return accuracy if all(math.isfinite(n) for n in numbers if isinstance(n, float)) else None

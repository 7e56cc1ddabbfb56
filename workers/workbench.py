"""What a child prepares once for a setting: the model, its capture, its judge, its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from thunder_tune.measure.accuracy import Judge, NotJudgeable
from thunder_tune.measure.policies import policy
from thunder_tune.measure.steps import Step, forward_step, trainable, training_step
from thunder_tune.measure.timing import rotation
from thunder_tune.models import load
from thunder_tune.models.weights import RANDOM_WEIGHTS
from thunder_tune.program import Capture, capture
from thunder_tune.values.job import Progress, Setting
from thunder_tune.values.trial import FailureKind, Phase
from thunder_tune.workers.device_lease import lease_of
from thunder_tune.workers.failures import FAULTS, ModelFault, classify

if TYPE_CHECKING:
    from thunder_tune.workers.trial_process import Tell


NARROW_ON_RANDOM = (
    "8 bits are judged here on random weights, which have no outliers as trained ones do: for a "
    "verdict that holds, tune your own model with its weights"
)
_LEASED = frozenset({"check", "time"})
"""Phases that need the device to themselves."""


class PhaseClock:
    """Tells the parent which phase begins, and keeps the seconds of each.

    Attributes:
        phase: The one entered last.
        seconds: Spent in each phase so far.
    """

    def __init__(self, tell: Tell, device: str = "cpu") -> None:
        self._tell = tell
        self._device = device
        self.phase: Phase = "start"
        self.seconds: dict[str, float] = {}
        self._subject = ""
        self._waited_s = 0.0

    @contextmanager
    def during(self, phase: Phase, subject: str = "") -> Iterator[None]:
        """Enter a phase; what is done inside counts for it.

        Judging and timing hold the device lease; while one times, the other processes of the
        device stand still.
        """
        quietly = phase == "time"
        with self.leased(subject, quietly=quietly) if phase in _LEASED else nullcontext():
            self._begin(phase, subject)
            started = self._now()
            try:
                yield
            finally:
                self._add(phase, started)

    @contextmanager
    def leased(self, subject: str = "", *, quietly: bool = False) -> Iterator[None]:
        """Hold the device lease; the wait for it is a phase of its own."""
        lease = lease_of(self._device)
        started = self._now()
        with lease.held(lambda: self._begin("wait", subject), quietly=quietly):
            self._add("wait", started)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the device lease for a while in the midst of a phase; the wait is a wait.

        The others go on compiling: one that stood still might hold a lock that this one needs.
        """
        phase, subject = self.phase, self._subject
        started = self._now()
        with lease_of(self._device).held(lambda: self._begin("wait", subject)):
            elapsed, idle = (now - then for now, then in zip(self._now(), started, strict=True))
            self._waited_s += elapsed - idle
            if self.phase != phase:
                self._begin(phase, subject)
            yield

    def _begin(self, phase: Phase, subject: str) -> None:
        self.phase, self._subject = phase, subject
        self._tell(Progress(phase=phase, subject=subject))

    def now(self) -> float:
        """Return seconds from a fixed moment, idle ones left out.

        Idle is who was stopped, or waited for the device in the midst of a phase.
        """
        elapsed, idle = self._now()
        return elapsed - idle

    def _now(self) -> tuple[float, float]:
        idle_s = lease_of(self._device).stood_still_s() + self._waited_s
        return time.perf_counter(), idle_s

    def _add(self, phase: Phase, started: tuple[float, float]) -> None:
        """Count the seconds since then for a phase, but idle ones as a wait."""
        elapsed, idle = (now - then for now, then in zip(self._now(), started, strict=True))
        self.seconds[phase] = self.seconds.get(phase, 0.0) + elapsed - idle
        if idle > 0.0:
            self.seconds["wait"] = self.seconds.get("wait", 0.0) + idle

    @contextmanager
    def during_of_model(self, phase: Phase) -> Iterator[None]:
        """Enter a phase in which whatever is raised is the model's fault.

        Raises:
            ModelFault: In place of what was raised.
        """
        try:
            with self.during(phase):
                yield
        except FAULTS as error:
            kind: FailureKind | None = None
            if isinstance(error, NotJudgeable):
                kind = "not-judgeable"
            raise ModelFault(classify(error, phase, kind=kind, of_model=True)) from error


class Workbench:
    """A loaded model and what its candidates need.

    A fault of the model is raised as `ModelFault`.

    Attributes:
        setting: What it was made for.
        model: On its device.
        notes: What the user should know of it.
        judge: Holds the references.
        inputs: One set, for the capture and for first calls.
        timed_inputs: Sets that timed calls rotate over.
        resident_bytes: Device memory of the model and one set of inputs.
        captures: Captures made so far.
    """

    def __init__(self, setting: Setting, clock: PhaseClock, *, seed: int) -> None:
        """Load the model and compute the references on the inputs of a seed."""
        self.setting = setting
        self.captures = 0
        self._capture: Capture | None = None
        with clock.during_of_model("load"):
            lease_of(setting.source.device)  # from here on compiling keeps off the lease's cores
            loaded = load(setting.source)
            one_set = loaded.make_inputs(seed)
            self.resident_bytes = torch.cuda.memory_allocated() if self.is_cuda else 0
            del one_set
        self.model, self.notes = loaded.model, _notes(loaded.notes, setting.policies)
        with clock.during_of_model("check"):
            self.judge = Judge(
                loaded.model,
                loaded.make_inputs,
                device=setting.source.device,
                training=self.is_training,
                policies=setting.policies,
                metric=setting.metric,
                seed=seed,
            )
            self.inputs = self.judge.inputs[0]
            self.timed_inputs = rotation(self.judge.inputs, device=setting.source.device)
            self.synchronize()

    @property
    def is_cuda(self) -> bool:
        """Whether the model runs on a GPU."""
        return self.setting.source.device == "cuda"

    @property
    def is_training(self) -> bool:
        """Whether a step goes forward and backward."""
        return self.setting.source.mode == "train"

    def capture(self, clock: PhaseClock) -> Capture:
        """Return the model's capture; made at the first call, once it succeeds.

        One that fails is not kept: what stopped it (memory was short) may be over by the next.
        """
        if self._capture is None:
            with clock.during("capture"):
                captured = capture(
                    self.model,
                    self.inputs.args,
                    self.inputs.kwargs,
                    front_end=self.setting.front_end,
                    training=self.is_training,
                )
                self.captures += captured.times
            if not captured.program.is_captured:
                return captured
            self._capture = captured
        return self._capture

    def step(self, call: Callable[..., Any]) -> Step:
        """Return one step of the model, or of a candidate built from it."""
        if not self.is_training:
            return forward_step(call)
        return training_step(call, tuple(trainable(self.model).values()))

    def synchronize(self) -> None:
        """Wait for the device, so that its faults and its time belong to what caused them."""
        if self.is_cuda:
            torch.cuda.synchronize()


def _notes(of_model: tuple[str, ...], policies: Sequence[str]) -> tuple[str, ...]:
    """Return the model's notes, and what they mean for programs in 8 bits where these may run."""
    has_narrow = any(policy(name).precisions == "any" for name in policies)
    return (*of_model, NARROW_ON_RANDOM) if has_narrow and RANDOM_WEIGHTS in of_model else of_model

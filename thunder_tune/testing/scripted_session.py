"""A session without a model: each candidate does what its assignment's `ACT` says."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from thunder_tune.values.comparison import Block, Round
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob, Progress
from thunder_tune.values.program import Program
from thunder_tune.values.screening import ClassMeasurement, Screening, ScreenJob
from thunder_tune.values.space import SearchSpace
from thunder_tune.values.trial import Accuracy, Failure, Timing, TrialResult
from thunder_tune.workers.trial_process import Tell

SCRIPTED_SESSION = "thunder_tune.testing.scripted_session:ScriptedSession"
DIES_ONCE_SESSION = "thunder_tune.testing.scripted_session:DiesOnceSession"
DIES_ONCE = "THUNDER_TUNE_DIES_ONCE"
"""Variable that names the file which the first process of a `DiesOnceSession` leaves."""
ACT = "act"
"""Dimension whose choice is what the candidate does: a method of `Acts`."""
AT = "at"
"""Dimension whose choice is the phase in which it does it; "compile" by default."""
DEVICE = "THUNDER_TUNE_SCRIPTED_DEVICE"
"""Variable that names the device which results are said to come from."""
HANGS = "THUNDER_TUNE_SCRIPTED_HANGS"
"""Variable of machines on which `Acts.hang_there` hangs."""

_PHASES = ("load", "compile", "check", "time")


class Acts:
    """Everything that a candidate may do to its process."""

    def well(self) -> None:
        """Give a result."""

    def hang(self) -> None:
        """Wait for ever."""
        threading.Event().wait()

    def hang_there(self) -> None:
        """Wait for ever on the machines whose environment says so."""
        if os.environ.get(HANGS):
            self.hang()

    def stop(self) -> None:
        """Stand still until someone lets it go on."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def spin(self) -> None:
        """Hold the interpreter for ever in native code, where no Python signal handler runs."""
        ctypes.PyDLL(None).pause()

    def exit(self) -> None:
        """End the process, cleanup left out."""
        os._exit(3)

    def kill(self) -> None:
        """Be killed, as by the kernel when memory is short."""
        os.kill(os.getpid(), signal.SIGKILL)

    def segfault(self) -> None:
        """Read from address 0."""
        ctypes.string_at(0)

    def defect(self) -> None:
        """Let an exception escape from the session."""
        raise ZeroDivisionError("planted defect")

    def eat(self) -> None:
        """Allocate without end."""
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1024) * 16_384))

    def fork(self) -> None:
        """Leave behind a process of the same group."""
        self._leave_behind(start_new_session=False)

    def detach(self) -> None:
        """Leave behind a process in a session of its own."""
        self._leave_behind(start_new_session=True)

    def talk(self) -> None:
        """Write to standard output and standard error."""
        sys.stdout.write("noise on stdout\n")
        sys.stderr.write("noise on stderr\n")

    def _leave_behind(self, *, start_new_session: bool) -> None:
        command = [sys.executable, "-c", f"import signal; signal.pause()  # of {os.getpid()}"]
        subprocess.Popen(command, start_new_session=start_new_session)


class ScriptedSession:
    """Answers the jobs of a child as a script says; see `thunder_tune.workers.trial_process`."""

    def __init__(self) -> None:
        self.is_spent = False

    def identify(self, job: DescribeJob) -> Fingerprint:
        """Return a fingerprint of the device that the environment names."""
        return Fingerprint(device=os.environ.get(DEVICE, "scripted"), capability="none")

    def describe(self, job: DescribeJob, tell: Tell) -> Description:
        """Describe an empty program, or do what the model's name says ("act:hang")."""
        act = job.setting.source.name.rpartition(":")[2]
        self._play({ACT: act if hasattr(Acts, act) else "well", AT: "capture"}, tell)
        return Description(
            program=Program(
                front_end="dynamo", hash="0", loose_hash="0", ops=(), cells=(), classes=()
            ),
            space=SearchSpace(dimensions=()),
            fingerprint=self.identify(job),
            capture_s=0.0,
            signature="",
            notes=(str(os.getpid()),),
        )

    def measure(self, job: MeasureJob, tell: Tell) -> TrialResult:
        """Give a result of 1 ms, or do what the assignment says."""
        self._play(job.candidate.assignment, tell)
        self.is_spent = job.candidate.assignment.get(ACT) == "spend"
        return self._result(job, not_finite=job.candidate.assignment.get(ACT) == "nan")

    def _result(self, job: MeasureJob, *, not_finite: bool) -> TrialResult:
        return TrialResult(
            candidate=job.candidate,
            role=job.role,
            state="complete",
            timing=Timing(samples_ms=(1.0,), latency_ms=1.0, ci95_ms=(1.0, 1.0)),
            applied=float("nan") if not_finite else 1.0,
            process_id=os.getpid(),
        )

    def screen(self, job: ScreenJob, tell: Tell) -> Screening:
        """Give 1 ms for each choice, or do what a class is named after."""
        for class_id in job.choices:
            self._play({ACT: class_id}, tell, subject=class_id)
        return Screening(
            measurements=tuple(
                ClassMeasurement(class_id=class_id, choice=choice, latency_ms=1.0)
                for class_id, choices in job.choices.items()
                for choice in choices
            )
        )

    def compare(self, job: CompareJob, tell: Tell, deadline: float) -> Round:
        """Give blocks of 1 ms; acts in "time" happen in the blocks, others before them."""
        failures: dict[str, Failure] = {}
        for contender in job.contenders:
            if contender.assignment.get(ACT) == "fail":
                failures[contender.name] = Failure(
                    kind="compile", phase="compile", message="planted failure"
                )
            elif contender.assignment.get(AT) != "time":
                self._play(contender.assignment, tell, subject=contender.name)
        blocks: list[Block] = []
        for contender in job.contenders * job.blocks:
            if contender.name not in failures and time.monotonic() < deadline:
                tell(Progress(phase="time", subject=contender.name))
                if contender.assignment.get(AT) == "time":
                    self._play(contender.assignment, tell, subject=contender.name)
                blocks.append(
                    Block(
                        contender=contender.name,
                        position=len(blocks),
                        samples_ms=(1.0,) * job.calls,
                        started_at=time.time(),
                    )
                )
        built = [c.name for c in job.contenders if c.name not in failures]
        accuracy = Accuracy(error_ratio=1.0, relative_error=0.0, cosine=1.0)
        return Round(
            process_id=os.getpid(),
            blocks=tuple(blocks),
            accuracy=dict.fromkeys(built, accuracy),
            applied=dict.fromkeys(built, 1.0),
            failures=failures,
        )

    def _play(self, assignment: Mapping[str, str], tell: Tell, subject: str = "") -> None:
        """Go through the phases and act in one of them."""
        at = assignment.get(AT, "compile")
        for phase in dict.fromkeys((*_PHASES, at)):
            tell(Progress(phase=phase, subject=subject))
            if phase == at:
                getattr(Acts(), assignment.get(ACT, "well"), Acts().well)()


class DiesOnceSession(ScriptedSession):
    """A scripted session whose first process is killed before it takes a job."""

    def __init__(self) -> None:
        super().__init__()
        with suppress(FileExistsError):
            Path(os.environ[DIES_ONCE]).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

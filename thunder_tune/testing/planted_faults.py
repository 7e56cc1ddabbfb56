"""Candidates that do to a worker what candidates have done to tuners.

`PlantingSession` measures a real model in a real child process. A candidate's assignment says what
goes wrong (`FAULT`, a method of `Faults`) and in which phase (`AT`); it then happens inside the
candidate's own call of the model, in code that no front end looks into.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch._inductor.async_compile import AsyncCompile

from thunder_tune.testing.faulty_models import Good
from thunder_tune.values.comparison import Round
from thunder_tune.values.job import CompareJob, MeasureJob, Progress, Setting
from thunder_tune.values.trial import TrialResult
from thunder_tune.workers.session import TrialSession
from thunder_tune.workers.trial_process import Tell
from thunder_tune.workers.workbench import PhaseClock, Workbench

PLANTING_SESSION = "thunder_tune.testing.planted_faults:PlantingSession"
MODEL = "thunder_tune.testing.planted_faults:Planted"
FAULT = "fault"
AT = "at"
ORPHANS_VARIABLE = "THUNDER_TUNE_TEST_ORPHANS"
"""Environment variable with the path of a file that gets the numbers of processes left behind."""
PRINTED_BYTES = 2**30

_MIB = 2**20
_PAUSE = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
_armed: list[tuple[str, str]] = []
"""The fault to come and its phase; empty while the model itself is loaded and judged."""
_phase: list[str] = [""]
_given: list[Tensor] = []


class Planted(Good):
    """Captured and judged like any other; a candidate made of it may be faulty."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer, and the fault of the moment."""
        answer: Tensor = self.plant(torch.relu(self.linear(x)))
        return answer

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no type for it
    def plant(self, out: Tensor) -> Tensor:
        """Do what was ordered for this phase; returns the answer, perhaps a faulty one."""
        if not _armed or _armed[0][1] != _phase[0]:
            return out
        answer = getattr(Faults(), _armed[0][0])(out)
        return out if answer is None else answer


class Unpicklable(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Unprintable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError("planted: no text")


class Panic(BaseException):
    """No Exception, as what a Rust extension raises when it panics."""


class Faults:
    """Everything that a candidate may do; returns a faulty answer, or None for the right one."""

    # It raises.

    def raises(self, out: Tensor) -> None:
        """Raise an error whose text never comes twice."""
        with tempfile.NamedTemporaryFile() as file:
            raise ValueError(
                f"planted: {object()!r} of process {os.getpid()} refused {file.name} "
                f"of {id(file) % 977}.25 MiB"
            )

    def raises_unpicklable(self, out: Tensor) -> None:
        """Raise an exception that holds a lock."""
        raise Unpicklable("planted: holds a lock")

    def raises_unprintable(self, out: Tensor) -> None:
        """Raise an exception that has no text."""
        raise Unprintable

    def raises_odd_characters(self, out: Tensor) -> None:
        """Raise an error with characters that databases refuse."""
        raise ValueError("planted: \0 and \udcff and \x1b[31m")

    def panics(self, out: Tensor) -> None:
        """Raise what is no Exception."""
        raise Panic("planted panic")

    # It ends its process.

    def segfaults(self, out: Tensor) -> None:
        """Read from address 0."""
        ctypes.string_at(0)

    def aborts(self, out: Tensor) -> None:
        """Abort, as a failed assertion in C++ does."""
        os.abort()

    def exits(self, out: Tensor) -> None:
        """End the process without any cleanup."""
        os._exit(3)

    # It never ends.

    def ignores_sigterm(self, out: Tensor) -> None:
        """Wait for ever and listen to nobody."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Event().wait()

    def holds_the_interpreter(self, out: Tensor) -> None:
        """Loop in C, where neither another thread nor a Python signal handler runs."""
        collections.deque(itertools.repeat(0), maxlen=0)

    def spins_on_the_gpu(self, out: Tensor) -> None:
        """Keep the GPU busy: for centuries, were the process not ended."""
        torch.cuda._sleep(2**60)  # type: ignore[no-untyped-call]  # torch has no type for it

    # It takes too much.

    def fills_host_memory(self, out: Tensor) -> None:
        """Allocate without end, and touch it."""
        hoard = []
        while True:
            hoard.append(b"x" * (8 * _MIB))

    def fills_gpu_memory(self, out: Tensor) -> None:
        """Allocate on the GPU without end."""
        hoard = []
        while True:
            hoard.append(torch.empty(2**28, device=out.device))

    def prints(self, out: Tensor) -> None:
        """Print a GiB, one half to standard output and the other to standard error."""
        _armed.clear()  # once is enough
        print("planted: it begins", flush=True)  # noqa: T201 - that is the fault
        line = b"planted noise".ljust(63, b".") + b"\n"
        for number in range(PRINTED_BYTES // _MIB):
            os.write(1 + number % 2, line * (_MIB // len(line)))
        print("planted: it ends", file=sys.stderr, flush=True)  # noqa: T201

    def fills_the_temporary_folder(self, out: Tensor) -> None:
        """Leave a large file, then fail as on a full disk."""
        folder = Path(tempfile.mkdtemp())
        (folder / "planted").write_bytes(bytes(8 * _MIB))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    def leaves_processes(self, out: Tensor) -> None:
        """Start one of the same group, one with a session of its own, and two daemons."""
        self._note(subprocess.Popen(_PAUSE).pid)
        self._note(subprocess.Popen(_PAUSE, start_new_session=True).pid)
        self._leave_daemon()
        self._leave_daemon(clean=True)

    def forks_and_falls_through(self, out: Tensor) -> None:
        """Fork; the copy raises, so that it goes on as if it were this process."""
        copy = os.fork()
        if not copy:
            raise ValueError("planted: in the copy")
        os.waitpid(copy, 0)

    def keeps_compile_workers(self, out: Tensor) -> None:
        """Start what Inductor keeps for later candidates: no fault."""
        if torch._inductor.config.compile_threads == 1:
            torch._inductor.config.compile_threads = 2
        pool = AsyncCompile.process_pool()
        self._note(pool.process.pid)  # type: ignore[union-attr]

    def leaves_a_daemon_and_dies(self, out: Tensor) -> None:
        """Leave a daemon and be killed."""
        self._leave_daemon()
        os.kill(os.getpid(), signal.SIGKILL)

    # It breaks the device.

    def writes_elsewhere(self, out: Tensor) -> None:
        """Store through a bad pointer, after which every call into CUDA fails."""
        from thunder_tune.testing.bad_kernels import store_elsewhere

        store_elsewhere(out)

    # Its answer is faulty.

    def answers_nan(self, out: Tensor) -> Tensor:
        """Return NaN."""
        return torch.full_like(out, float("nan"))

    def answers_another_shape(self, out: Tensor) -> Tensor:
        """Return one row more."""
        return torch.cat([out, out[:1]])

    def leaves_memory_unwritten(self, out: Tensor) -> Tensor:
        """Return memory as it comes."""
        return torch.empty_like(out)

    def answers_with_noise(self, out: Tensor) -> Tensor:
        """Return the right answer and noise of a thousandth of its size."""
        return out * (1.0 + 1e-3 * torch.rand_like(out))

    def answers_otherwise_later(self, out: Tensor) -> Tensor:
        """Return the right answer to an input twice, then another: a race that shows rarely."""
        _given.append(out.clone())
        times = sum(torch.equal(out, given) for given in _given)
        return out if times < 3 else 2.0 * out

    # It changes what all share.

    def changes_torch_state(self, out: Tensor) -> None:
        """Change all of torch's global state; the answer is right."""
        torch.set_autocast_enabled(out.device.type, True)
        torch.set_autocast_dtype(out.device.type, torch.float16)
        torch.set_num_threads(torch.get_num_threads() + 3)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        torch.autograd.set_detect_anomaly(True)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")

    def _leave_daemon(self, *, clean: bool = False) -> None:
        """Start a process whose parent ends; `clean`: with nothing in its environment."""
        code = (
            "import subprocess; p = subprocess.Popen("
            f"{_PAUSE!r}, start_new_session=True, stdout=subprocess.DEVNULL, "
            f"env={'{}' if clean else None}); print(p.pid)"
        )
        done = subprocess.run([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        self._note(int(done.stdout))

    def _note(self, process: int) -> None:
        with open(os.environ[ORPHANS_VARIABLE], "a") as file:
            file.write(f"{process}\n")


class PlantingSession(TrialSession):
    """Plants the fault that a candidate names."""

    def __init__(self) -> None:
        super().__init__()
        self._faults: dict[str, tuple[str, str] | None] = {}

    def measure(self, job: MeasureJob, tell: Tell) -> TrialResult:
        """Measure a candidate, faulty once the model itself was judged."""
        self._faults = {"": _taken(job.candidate.assignment)[1]}
        plain = replace(job.candidate, assignment=_taken(job.candidate.assignment)[0])
        try:
            result = super().measure(replace(job, candidate=plain), self._telling(tell))
        finally:
            _armed.clear()
        return replace(result, candidate=job.candidate)

    def compare(self, job: CompareJob, tell: Tell, deadline: float) -> Round:
        """Run a round of which some contenders may be faulty."""
        self._faults = {c.name: _taken(c.assignment)[1] for c in job.contenders}
        plain = tuple(replace(c, assignment=_taken(c.assignment)[0]) for c in job.contenders)
        return super().compare(replace(job, contenders=plain), self._telling(tell), deadline)

    def _telling(self, tell: Tell) -> Tell:
        """Return the same, with an eye on the phase and on who it is for."""

        def told(progress: Progress) -> None:
            _phase[0] = progress.phase
            if progress.subject:
                _armed[:] = filter(None, [self._faults.get(progress.subject)])
            tell(progress)

        return told

    def _workbench(self, setting: Setting, clock: PhaseClock) -> Workbench:
        bench = super()._workbench(setting, clock)
        _armed[:] = filter(None, [self._faults.get("")])
        return bench


def _taken(assignment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, str] | None]:
    """Return an assignment without its fault, and the fault with its phase."""
    rest = {name: choice for name, choice in assignment.items() if name not in (FAULT, AT)}
    fault = assignment.get(FAULT)
    return rest, (fault, assignment.get(AT, "compile")) if fault else None

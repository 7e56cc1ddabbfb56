"""One child process as its parent sees it: started, watched, killed as a group, reaped."""

from __future__ import annotations

import os
import signal
import site
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

import thunder_tune
from thunder_tune.errors import WorkerError
from thunder_tune.workers.log_file import LogFile
from thunder_tune.workers.protocol import Channel
from thunder_tune.workers.strays import processes_with
from thunder_tune.workers.temporary_folder import TemporaryFolder

SESSION = "thunder_tune.workers.session:TrialSession"
"""What a child answers with unless a test injects another."""

_FAMILY_EVERY_S = 1.0
_MARK = "THUNDER_TUNE_TRIAL_PROCESS"
"""Variable that all descendants of a child inherit, those too that left its group and session."""
_TAIL_BYTES = 16_384
_END_S = 5.0
_DUMP_S = 1.0
DUMP_SIGNAL = signal.SIGUSR2
"""Has a child write the stacks of its threads to the log, also while native code runs."""

# The kernel sends a child its parent-death signal when the *thread* that started it ends, so one
# thread that lives as long as the interpreter starts all of them.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trial-starter")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """How to start the children of one worker.

    Attributes:
        name: Of the worker; begins the names of its log files.
        log_folder: Folder for log files where a job's setting names none; "": no logs.
        slots: Workers that share this machine, for the default limit of host memory.
        session: "module:attribute" called without arguments in the child; answers the jobs.
        environment: Variables to set, or (None) to remove.
    """

    name: str = "worker-0"
    log_folder: str = ""
    slots: int = 1
    session: str = SESSION
    environment: Mapping[str, str | None] = field(default_factory=dict)


class ChildProcess:
    """A running child, in a session and process group of its own."""

    def __init__(self, options: ChildOptions, log_folder: str) -> None:
        """Start it; it reads its first message once its imports are done.

        Raises:
            WorkerError: The log folder cannot be written, or no process can be started.
        """
        self.started = time.monotonic()
        self._mark = uuid.uuid4().hex
        self.log = LogFile(log_folder, options.name)
        try:
            self._folder = TemporaryFolder()
        except OSError as error:
            raise WorkerError(
                f"no folder for temporary files can be made ({error.strerror}: {error.filename}): "
                "free space there, or set TMPDIR to another"
            ) from error
        changes = {**options.environment, **self._folder.environment(), _MARK: self._mark}
        ours, theirs = socket.socketpair()
        try:
            with self.log.opened() as log, theirs:
                starting = _starter.submit(_start, options.session, theirs, log, changes)
                self._process = starting.result()
        except (OSError, RuntimeError) as error:
            ours.close()
            self._folder.remove()
            raise WorkerError(f"cannot start a trial process: {error}") from error
        self.channel = Channel(ours)
        self._family: list[psutil.Process] = []
        self._family_found = 0.0
        self._killing = threading.RLock()
        self._killed = False

    @property
    def pid(self) -> int:
        """Process id, which is its group's id too."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def stands_still(self) -> bool:
        """Whether it was stopped, for another process of its device to be timed."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def memory_bytes(self) -> int:
        """Return the host memory of the child and its descendants: the sum of resident sizes.

        Descendants are looked up about once a second: that takes milliseconds of processor time,
        which a measurement beside it would feel. Pages shared after a fork count more than once.
        """
        self._find_family()
        return sum(_resident_bytes(process) for process in self._family)

    def exclusive_memory_bytes(self) -> int:
        """Return the same with each shared page counted once; slow, so only to be sure."""
        return sum(_proportional_bytes(process) for process in self._family)

    def ending(self) -> str:
        """Say how the process ended: "killed by SIGSEGV", "exited with status 3"."""
        try:
            code = self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        if code >= 0:
            return f"exited with status {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    def last_words(self) -> str:
        """Return the most telling line at the end of the log, or ""."""
        lines = self.log.tail(_TAIL_BYTES).splitlines()
        return _most_telling([line.strip() for line in lines if line.strip()])

    def dump_stacks(self) -> None:
        """Have the child write to its log where it is, as long as it can."""
        size = self.log.size()
        with self._killing:
            if self._killed:
                return
            with suppress(ProcessLookupError):
                os.kill(self.pid, DUMP_SIGNAL)
        if self.log.path:
            self.log.wait_for_more(size, _DUMP_S)

    def kill(self) -> None:
        """Kill the child and all its descendants, and reap it; from any thread, and repeatedly.

        A descendant may have left the child's group and its session. While the child lives it is
        found below it; else by the variable that it inherited. Of one that cleared its environment
        too, and whose child died by itself, only the last look at the family knows.
        """
        with self._killing:
            if self._killed:  # the group's id may be another's by now
                return
            self._killed = True
            self._look_for_family()
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            strays = {*self._family, *processes_with(_MARK, self._mark)}
            for process in strays:
                with suppress(psutil.Error):
                    process.kill()
            deadline = time.monotonic() + _END_S
            while any(_runs(process) for process in strays) and time.monotonic() < deadline:
                time.sleep(0.01)
            self.log.cut()
            self._folder.remove()

    def close(self) -> None:
        """Kill the child and close our end of the channel; by the thread that uses it."""
        self.kill()
        self.channel.close()

    def _find_family(self) -> None:
        now = time.monotonic()
        if now - self._family_found >= _FAMILY_EVERY_S:
            self._family_found = now
            self._look_for_family()

    def _look_for_family(self) -> None:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.pid)
            family = [root, *root.children(recursive=True)]
            if _runs(root):  # the children of a dead one are another's by now
                self._family = family


def _start(
    session: str,
    channel: socket.socket,
    log: IO[bytes],
    changes: Mapping[str, str | None],
) -> subprocess.Popen[bytes]:
    """Start the process; called in the starter's thread."""
    command = [sys.executable, "-m", "thunder_tune.workers.trial_process"]
    command += ["--fd", str(channel.fileno()), "--parent", str(os.getpid())]
    command += ["--session", session]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(channel.fileno(),),
        start_new_session=True,
        env=_environment(changes),
    )


def with_package_path(path: str) -> str:
    """Return a PYTHONPATH by which other processes find this same thunder_tune.

    An installed package is found without; naming site-packages here would put it before the
    standard library.
    """
    folder = str(Path(thunder_tune.__file__).resolve().parent.parent)
    if folder in (*site.getsitepackages(), site.getusersitepackages()):
        return path
    rest = [entry for entry in path.split(os.pathsep) if entry and entry != folder]
    return os.pathsep.join([folder, *rest])


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    wanted = {**os.environ, **changes, "PYTHONUNBUFFERED": "1"}
    environment = {name: value for name, value in wanted.items() if value is not None}
    environment["PYTHONPATH"] = with_package_path(environment.get("PYTHONPATH", ""))
    return environment


def _runs(process: psutil.Process) -> bool:
    """Whether it can still do something; whose turn it is to reap it does not matter."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _proportional_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _most_telling(lines: list[str]) -> str:
    """Pick the innermost frame of a fatal error that faulthandler wrote, else the last line."""
    fatal = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if not fatal:
        return lines[-1][:200] if lines else ""
    after = lines[fatal[-1] :]
    current = [i for i, line in enumerate(after) if line.startswith("Current thread")]
    frame = after[current[0] + 1] if current and current[0] + 1 < len(after) else ""
    return f"{after[0]} {frame}".strip()[:300]

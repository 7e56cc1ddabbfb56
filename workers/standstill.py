"""Quiet on the host: while one process of a device measures, the others stand still.

Compilers keep every core busy, and a program that is no faster than its launches would be timed at
the pace of a busy host. Each trial process that shares a device signs a roster: a file named after
its process group, locked for as long as the process lives. Whoever measures stops those groups
and lets them go on afterwards, with a note of how long they stood still, so that they count it for
nothing; should it die meanwhile, the parent of any of them lets them go on.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from thunder_tune.workers.temporary_folder import shared_folder

_SUFFIX = ".lease"
_START_FIELD = 19
"""Of /proc/PID/stat, counted from the field after the name (proc(5))."""


def lease_path(uuid: str) -> Path:
    """Return the file that stands for a GPU, the same for every process of the user."""
    return _folder() / f"{_prefix()}{uuid}{_SUFFIX}"


def roster_of(lease: Path) -> Roster:
    """Return the roster of the device that a lease's file stands for."""
    return Roster(lease.with_suffix(".roster"))


def resume_abandoned() -> None:
    """Let processes go on that a holder of their device's lease had stopped when it died.

    For whoever watches them, now and then; does nothing where a living one holds the lease.
    """
    for path in _folder().glob(f"{_prefix()}*{_SUFFIX}"):
        with suppress(OSError), path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            roster_of(path).resume()


class Roster:
    """The process groups that share a device.

    Args:
        folder: Of the device; made when the first one signs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: IO[str] | None = None

    def sign(self) -> None:
        """Offer this process's group to be stopped.

        Only the first of a session does: a program that a user started from a shell must not be
        stopped under the shell's hands.

        Raises:
            OSError: The folder cannot be written.
        """
        if self._own is not None or os.getsid(0) != os.getpid():
            return
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{os.getpid()}-{_started(os.getpid())}"
        while self._own is None:
            file = path.open("a+")
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():  # nobody took it for that of a dead process before it was locked
                self._own = file

    def stood_still_s(self) -> float:
        """Return the seconds that this process's group was stopped so far."""
        if self._own is None:
            return 0.0
        self._own.seek(0)
        return sum(float(line) for line in self._own)

    @contextmanager
    def others_stopped(self) -> Iterator[None]:
        """Stop the other groups inside the block."""
        others = {group: path for group, path in self._living().items() if group != os.getpgrp()}
        started = time.perf_counter()
        try:
            for group in others:
                _signal(group, signal.SIGSTOP)
            yield
        finally:
            seconds = time.perf_counter() - started
            for group, path in others.items():
                with suppress(FileNotFoundError), path.open("r+") as file:
                    file.seek(0, os.SEEK_END)
                    file.write(f"{seconds:.6f}\n")
                _signal(group, signal.SIGCONT)

    def resume(self) -> None:
        """Let all groups go on, stopped or not."""
        for group in self._living():
            _signal(group, signal.SIGCONT)

    def _living(self) -> dict[int, Path]:
        """Return the groups whose first process lives; those of the dead leave the roster."""
        found = {}
        for path in self._folder.glob("*-*"):
            with suppress(FileNotFoundError), path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    group, _, started = path.name.partition("-")
                    # In a container beside this one the number may be another process's.
                    if _started(int(group)) == started:
                        found[int(group)] = path
                else:
                    path.unlink()
        return found


def _started(process: int) -> str:
    """Return when a process began, as the kernel counts; "" where there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[_START_FIELD]


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _folder() -> Path:
    return shared_folder()  # a trial process's own temporary files lie elsewhere


def _prefix() -> str:
    return f"thunder_tune-{os.getuid()}-"

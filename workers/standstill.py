"""Quiet on the host: while one process of a device measures, the others stand still.

Compilers keep every core busy, and a program that is no faster than its launches would be timed at
the pace of a busy host. Each trial process that shares a device signs a roster: a file named after
its process group, locked for as long as the process lives. Whoever measures stops those groups
and lets them go on afterwards; should it die meanwhile, the parent of any of them does that.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_SUFFIX = ".lease"


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
        """
        if self._own is None and os.getsid(0) == os.getpid():
            self._folder.mkdir(exist_ok=True)
            self._own = (self._folder / str(os.getpid())).open("w")
            fcntl.flock(self._own, fcntl.LOCK_EX)

    @contextmanager
    def others_stopped(self) -> Iterator[None]:
        """Stop the other groups inside the block."""
        groups = [group for group in self._living() if group != os.getpgrp()]
        try:
            for group in groups:
                _signal(group, signal.SIGSTOP)
            yield
        finally:
            for group in groups:
                _signal(group, signal.SIGCONT)

    def resume(self) -> None:
        """Let all groups go on, stopped or not."""
        for group in self._living():
            _signal(group, signal.SIGCONT)

    def _living(self) -> list[int]:
        """Return the groups whose first process lives; those of the dead leave the roster."""
        found = []
        for path in self._folder.glob("*"):
            with suppress(FileNotFoundError), path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.append(int(path.name))
                else:
                    path.unlink()
        return found


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _folder() -> Path:
    return Path(tempfile.gettempdir())


def _prefix() -> str:
    return f"thunder_tune-{os.getuid()}-"

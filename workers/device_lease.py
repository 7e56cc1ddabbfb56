"""The device lease: one process at a time runs kernels that are measured or judged.

Several processes share a GPU, so that candidates compile on CPU cores while another is measured.
Whoever judges or times holds the lease, and whatever times kernels while it compiles; the
operating system gives it back when a holder dies. On a large machine the holder also gets
processor cores of its own, and while it times, the other processes of the device stand still.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch

from thunder_tune.errors import WorkerError
from thunder_tune.workers.standstill import Roster, lease_path, roster_of

_CORES_TO_SHARE = 8
"""From so many cores on, some are kept for the process that holds the lease."""
_RESERVED_CORES = 2


@cache
def lease_of(device: str) -> DeviceLease:
    """Return this process's lease of a device kind."""
    return DeviceLease(device)


class DeviceLease:
    """The lease of this process's device; of no effect on a CPU, whose slots share nothing.

    Args:
        device: "cuda" or "cpu".

    Raises:
        WorkerError: The folder for temporary files cannot be written.
    """

    def __init__(self, device: str) -> None:
        self._path = _path() if device == "cuda" else None
        self._depth = 0
        self._cores = sorted(os.sched_getaffinity(0))
        self._roster = roster_of(self._path) if self._path is not None else None
        if self._roster is not None:
            self._work_on(reserved=False)
            self._sign(self._roster)

    def stood_still_s(self) -> float:
        """Return the seconds that this process was stopped so far, for others to be timed."""
        return self._roster.stood_still_s() if self._roster is not None else 0.0

    @contextmanager
    def held(self, waiting: Callable[[], None], *, quietly: bool = False) -> Iterator[None]:
        """Hold the lease inside the block; re-entrant within the process's one thread.

        Args:
            waiting: Called once if another process holds it.
            quietly: Whether the other processes of the device stand still meanwhile; of effect
                where the lease is not held already.
        """
        if self._path is None or self._roster is None or self._depth:
            yield
            return
        with self._path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            self._depth += 1
            self._work_on(reserved=True)
            try:
                with self._roster.others_stopped() if quietly else nullcontext():
                    yield
            finally:
                self._depth -= 1
                self._work_on(reserved=False)

    def _sign(self, roster: Roster) -> None:
        try:
            roster.sign()
        except OSError as error:
            raise WorkerError(
                f"cannot keep the lease of the device: {error.strerror}: {error.filename}: set "
                "TMPDIR to a folder of your own"
            ) from error

    def _work_on(self, *, reserved: bool) -> None:
        """Move this thread to the reserved cores, or away from them."""
        if len(self._cores) >= _CORES_TO_SHARE:
            own, others = self._cores[:_RESERVED_CORES], self._cores[_RESERVED_CORES:]
            os.sched_setaffinity(0, own if reserved else others)


def _path() -> Path:
    return lease_path(str(torch.cuda.get_device_properties(0).uuid))

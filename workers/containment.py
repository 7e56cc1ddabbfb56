"""What a candidate does to its process beyond its own work ends with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from thunder_tune.workers.torch_state import kept_torch_state

logger = logging.getLogger(__name__)

_HELPERS = (
    "torch._inductor.compile_worker",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)
"""In the command lines of processes that a library keeps for the whole life of this one."""


@contextmanager
def contained(spend: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set torch's global state back after the block, and end the processes that it started.

    They would disturb what is timed next.

    Args:
        spend: Called if there were any: an unknown library may have needed them, so that this
            process is no longer what it was.
    """
    before = _descendants()
    try:
        with kept_torch_state():
            yield
    finally:
        for process in _descendants() - before:
            if _end(process):
                spend()


def _end(process: psutil.Process) -> bool:
    """End a process unless it is a library's helper; says whether it was one to be ended."""
    with suppress(psutil.Error):
        name = " ".join(process.cmdline())[:200] or process.name()
        if not any(helper in name for helper in _HELPERS):
            process.kill()
            logger.warning(
                "the candidate left process %d running, now killed: %s", process.pid, name
            )
            return True
    return False


def _descendants() -> set[psutil.Process]:
    """Return the living processes below this one, daemons included (it adopts what they leave)."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    return found

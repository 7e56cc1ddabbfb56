"""What a candidate does to its process beyond its own work ends with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from thunder_tune.workers.torch_state import kept_torch_state

logger = logging.getLogger(__name__)

_HELPERS = ("_inductor", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""In the command lines of processes that a library keeps for the whole life of this one."""


@contextmanager
def contained(spend: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set torch's global state back after the block, and end the processes that it started.

    They would disturb what is timed next.

    Args:
        spend: Called if this process is no longer what it was: there were such processes, which
            an unknown library may have needed, or a part of the state cannot be set back.
    """
    before = _descendants()
    try:
        with kept_torch_state(spend):
            yield
    finally:
        for process in _descendants() - before:
            spend()
            with suppress(psutil.Error):
                logger.warning("the candidate left %d running, now killed: %s", *_named(process))
                process.kill()


def _descendants() -> set[psutil.Process]:
    """Return the living processes below this one, but for helpers and what these started.

    Daemons are among them: this process adopts what its descendants leave.
    """
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if not any(helper in _named(child)[1] for helper in _HELPERS):
                found |= {child, *child.children(recursive=True)}
    return {process for process in found if _runs(process)}


def _named(process: psutil.Process) -> tuple[int, str]:
    return process.pid, " ".join(process.cmdline())[:300] or process.name()


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False

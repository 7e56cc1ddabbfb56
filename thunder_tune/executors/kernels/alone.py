"""A device to oneself while kernels are timed to choose among them.

What is chosen so stands for as long as the process lives, or longer: another process's kernels in
between would choose. By itself nothing is arranged; who shares a device among processes says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Hold = Callable[[], AbstractContextManager[None]]
"""Makes a block in which no other process measures on the device; re-entrant."""

_hold: Hold = nullcontext


def hold_with(hold: Hold) -> None:
    """Say how this process gets its device to itself, from now on."""
    global _hold
    _hold = hold


@contextmanager
def alone() -> Iterator[None]:
    """Have the device to oneself inside the block."""
    with _hold():
        yield

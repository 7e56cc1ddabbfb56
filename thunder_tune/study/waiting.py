"""Waiting for a call that blocks while something else is looked at once a second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

TICK_S = 1.0
"""How long a controller waits before it looks at the time and at its lease."""


def result_while_ticking(future: Future[T], tick: Callable[[], None]) -> T:
    """Return a future's result; call `tick` once per `TICK_S` until it is there."""
    while not wait([future], timeout=TICK_S).done:
        tick()
    return future.result()


def call_while_ticking(work: Callable[[], T], tick: Callable[[], None]) -> T:
    """Do `work` in a thread and `tick` once per `TICK_S` in this one.

    What either raises is raised here. If it is `tick`, the thread goes on by itself: the caller
    sees to it that the work ends.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised where the future's result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="waited-for", daemon=True).start()
    return result_while_ticking(future, tick)

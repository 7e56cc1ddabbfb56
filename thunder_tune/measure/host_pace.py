"""How fast the host is at the moment: others on its cores slow down whoever launches kernels.

A program that is no faster than its launches is timed at the pace of the host. A short fixed loop
of what a host does for such a program, Python and the dispatch of tensor operations, is run
between batches of timed calls; its fastest run in this process is the reference. A host that
was busy all the time from the start of the process has a slow reference: what is noticed is a
change, and cores that are shared by turns, because some of the short runs fall into one's turn.
"""

from __future__ import annotations

import time
from functools import cache
from statistics import fmean

import torch

BUSY_MARK = "host-busy"
BUSY = 0.25
"""The loop may take this share more than its fastest run, on average over a measurement."""
ITERATIONS = 2000
"""Passes of the loop: 2 to 5 ms on today's machines, long against a timer's steps."""
FIRST_RUNS = 5
"""Runs that find a first reference."""


class HostWatch:
    """Watches the host's pace during one measurement.

    `observe` runs the loop once. Call it before the first batch of timed calls, after the last
    and between batches, never inside one; it leaves the device alone. The loop takes the place of
    what is measured in the processor's caches, so that one untimed call should follow.
    """

    def __init__(self) -> None:
        self._pace = _pace()
        self._seen_s: list[float] = []

    def observe(self) -> None:
        """Run the loop once: some milliseconds."""
        self._seen_s.append(self._pace.run())

    def marks(self) -> tuple[str, ...]:
        """Name what was seen: "host-busy"."""
        return (BUSY_MARK,) if is_busy(self._seen_s, self._pace.fastest_s) else ()


def is_busy(seen_s: list[float], fastest_s: float) -> bool:
    """Whether runs of the loop took too long on average; one hiccup of many is none."""
    return bool(seen_s) and fmean(seen_s) > (1.0 + BUSY) * fastest_s


class Pace:
    """The loop and its fastest run so far.

    Attributes:
        fastest_s: Seconds of the fastest run.
    """

    def __init__(self) -> None:
        self._one = torch.ones(1)
        self.fastest_s = float("inf")
        for _ in range(FIRST_RUNS):
            self.run()

    def run(self) -> float:
        """Run the loop; returns its seconds."""
        one = total = self._one
        count = 0
        with torch.no_grad():
            started = time.perf_counter()
            for i in range(ITERATIONS):
                total = torch.add(total, one)
                count += i & 3
            seconds = time.perf_counter() - started
        self.fastest_s = min(self.fastest_s, seconds)
        return seconds


@cache
def _pace() -> Pace:
    """Return the one of this process."""
    return Pace()

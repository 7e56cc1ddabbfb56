"""How long a child has been in each phase, and how much it may take of time and memory."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import psutil

from thunder_tune.values.job import Limits, Progress
from thunder_tune.values.trial import Phase
from thunder_tune.workers.protocol import ProtocolError

DOING: Mapping[Phase, str] = {
    "start": "starting",
    "load": "loading the model",
    "capture": "capturing the program",
    "compile": "compiling",
    "wait": "waiting for the device",
    "check": "checking the result",
    "time": "timing",
}
"""Phases in words."""

_MACHINE_SHARE = 0.8
_SLACK = 1.5
"""Times as long as before: caches are warm, but more is built at once."""
_MOST_OF_WHAT_IS_LEFT = 0.85
_AGAIN = 1.25
"""Times as long as before: what the others need again, and some blocks."""


class PhaseWatch:
    """Follows the progress events of one job.

    Attributes:
        phase: What the child does.
        subject: The contender it does it for, or "".
        limit_s: Seconds that this may take.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        since: float,
        deadline: float | None = None,
        build_s: Mapping[str, float] | None = None,
    ) -> None:
        """Begin with phase "start" at `since`.

        Args:
            limits: Seconds for each phase.
            since: Reading of the monotonic clock.
            deadline: Reading at which the whole job has to end, if any.
            build_s: Seconds that subjects took to build before, where known.
        """
        self.phase: Phase = "start"
        self.subject = ""
        self._limits = limits
        self._deadline = deadline
        self._build_s = build_s or {}
        self._since = self._looked = since
        self._seconds: dict[str, float] = {}
        self._used_s = 0.0
        self._interrupted: tuple[str, str, float, float] | None = None
        self.limit_s = self._limit()

    def begin(self, progress: Progress) -> None:
        """Note that the child enters a phase, perhaps the same one anew.

        What a wait for the device interrupted goes on: what it had used of its limit stays used.

        Raises:
            ProtocolError: There is no such phase.
        """
        used_s = self._used_s + time.monotonic() - self._since
        self.seconds()
        if progress.phase not in DOING:
            raise ProtocolError(f"unknown phase {progress.phase!r}")
        left = (self.phase, self.subject, used_s, self.limit_s)
        interrupted, self._interrupted = self._interrupted, None
        if progress.phase == "wait":
            self._interrupted = left
        self.phase = cast(Phase, progress.phase)
        self.subject = progress.subject
        if interrupted is not None and interrupted[:2] == (self.phase, self.subject):
            self._used_s, self.limit_s = interrupted[2:]
        else:
            self._used_s, self.limit_s = 0.0, self._limit()

    def look(self, *, stands_still: bool) -> None:
        """Note whether the child is stopped; the time since the last look then is a wait."""
        now = time.monotonic()
        if stands_still:
            idle_s = now - max(self._looked, self._since)
            self._since += idle_s
            self._seconds["wait"] = self._seconds.get("wait", 0.0) + idle_s
        self._looked = now

    def overdue(self) -> str:
        """Say which limit has run out, or ""."""
        now = time.monotonic()
        if self._deadline is not None and now > self._deadline:
            return "the time for the comparison ran out"
        if self._used_s + now - self._since > self.limit_s:
            is_cut = self.limit_s < self._limits.of(self.phase)
            why = ", its part of the time that was left" if is_cut else ""
            return f"took longer than the limit of {self.limit_s:.3g} s{why}"
        return ""

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent in each phase up to now."""
        now = time.monotonic()
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + now - self._since
        self._since = now
        return dict(self._seconds)

    def _limit(self) -> float:
        limit = self._limits.of(self.phase)
        if self._deadline is not None and self.phase == "compile" and self.subject:
            limit = min(limit, self._part(max(0.0, self._deadline - self._since)))
        return limit

    def _part(self, left_s: float) -> float:
        """Return the seconds that a contender may take to build.

        One that hangs must leave time to measure the others without it. Of one that was built
        before it is known how long it may take without hanging. One of which this is not known,
        where it is of others, comes after them: what was spent so far is what they need again.
        """
        part_s = left_s / 2
        if self.subject in self._build_s:
            known_s = _SLACK * self._build_s[self.subject]
            return max(part_s, min(known_s, _MOST_OF_WHAT_IS_LEFT * left_s))
        if self._build_s:
            return max(part_s, left_s - _AGAIN * sum(self._seconds.values()))
        return part_s


def host_memory_limit(limits: Limits, slots: int) -> int:
    """Return the bytes of host memory that one child may use.

    Without a limit asked for: four fifths of the machine's memory divided by the workers on it.
    """
    if limits.host_memory_bytes is not None:
        return limits.host_memory_bytes
    return int(_machine_memory() * _MACHINE_SHARE / slots)


@functools.cache
def _machine_memory() -> int:
    """Return the memory of the machine, or of the container where that is smaller, in bytes."""
    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # absent, or "max"
            total = min(total, int(Path(path).read_text()))
    return total

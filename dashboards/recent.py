"""Values that are costly to make and shared by all who look at the same thing at one time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT = 8


class Recent(Generic[T]):
    """The last value of each key; one is made at a time, so that many readers cost one core.

    Args:
        fresh_s: Seconds after which a value is made anew even where its version stays.
        clock: Monotonic time in seconds.
    """

    def __init__(self, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing."""
        self._fresh_s, self._clock = fresh_s, clock
        self._kept: OrderedDict[Hashable, tuple[Hashable, float, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """Return a key's value: the one kept where the version is the same, else a new one."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None or found[0] != version or self._clock() - found[1] > self._fresh_s:
                found = (version, self._clock(), make())
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found[2]

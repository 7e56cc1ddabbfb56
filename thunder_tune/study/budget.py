"""Wall time of one run of a study: what the search may use once confirmation is safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

Clock = Callable[[], float]
"""Returns seconds from any fixed moment; never runs backwards."""
REMEMBERED = 15
"""The typical trial is the median of so many latest ones: early ones fill compile caches."""

LARGEST_RESERVE = 0.3
"""Share of the time budget that the confirmation may claim beforehand."""
SHORTEST_WAIT_S = 0.05


class Budget:
    """Seconds for everything, of which a part is kept back for the confirmation.

    Args:
        time_s: Seconds for the whole run, or None for no limit.
        clock: Source of time.

    Attributes:
        reserve_s: Seconds kept back for the confirmation; see `reserve`.
    """

    def __init__(self, *, time_s: float | None, clock: Clock) -> None:
        self._time_s = time_s
        self._clock = clock
        self._started = clock()
        self._durations: deque[float] = deque(maxlen=REMEMBERED)
        self.reserve_s = 0.0

    def reserve(self, confirmation_s: float) -> None:
        """Keep back what a full confirmation is estimated to take, as far as that is sensible.

        At most `LARGEST_RESERVE` of the whole: a shorter confirmation of something that was
        found beats a thorough one of nothing.
        """
        most_s = confirmation_s if self._time_s is None else LARGEST_RESERVE * self._time_s
        self.reserve_s = min(confirmation_s, most_s)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._started

    @property
    def left_s(self) -> float | None:
        """Seconds left for everything, below 0 when overdrawn; None without a limit."""
        return None if self._time_s is None else self._time_s - self.elapsed_s

    @property
    def search_left_s(self) -> float | None:
        """Seconds left before the confirmation must begin; None without a limit."""
        left_s = self.left_s
        return None if left_s is None else left_s - self.reserve_s

    @property
    def typical_s(self) -> float:
        """Seconds of a typical trial of late; 0 before the first."""
        return median(self._durations) if self._durations else 0.0

    @property
    def is_spent(self) -> bool:
        """Whether what runs now must give way to the confirmation."""
        left_s = self.search_left_s
        return left_s is not None and left_s <= 0

    @property
    def allows_another(self) -> bool:
        """Whether another typical trial would end before the confirmation must begin."""
        left_s = self.search_left_s
        return left_s is None or left_s > self.typical_s

    def note(self, duration_s: float) -> None:
        """Learn how long a trial took."""
        self._durations.append(duration_s)

    def patience_s(self, longest_s: float) -> float:
        """Return how long to wait for results: at most `longest_s`, not past the search's end."""
        left_s = self.search_left_s
        return longest_s if left_s is None else max(SHORTEST_WAIT_S, min(longest_s, left_s))

    def forecast_s(self, trials_left: int, workers: int) -> float | None:
        """Estimate the seconds to the study's end, the confirmation included; None: unknown."""
        left_s = self.left_s
        if trials_left > 0 and not self._durations:
            return left_s
        forecast_s = max(0, trials_left) * self.typical_s / workers + self.reserve_s
        return forecast_s if left_s is None else max(0.0, min(forecast_s, left_s))

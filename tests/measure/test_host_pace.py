from __future__ import annotations

import pytest

from thunder_tune.measure import host_pace
from thunder_tune.measure.host_pace import FIRST_RUNS, HostWatch, Pace, is_busy


class Clock:
    """Stands in for the `time` module: every run of the loop takes the next of its times."""

    def __init__(self, times):
        self._now, self._times, self._is_begin = 0.0, iter(times), True

    def perf_counter(self):
        if not self._is_begin:
            self._now += next(self._times)
        self._is_begin = not self._is_begin
        return self._now


@pytest.fixture
def watch(monkeypatch):
    """Make a watch in a process whose loop took 3 ms at first, and takes these times then."""

    def make(*later_ms):
        times = [0.003] * FIRST_RUNS + [ms / 1e3 for ms in later_ms]
        monkeypatch.setattr(host_pace, "time", Clock(times))
        pace = Pace()
        monkeypatch.setattr(host_pace, "_pace", lambda: pace)
        made = HostWatch()
        for _ in later_ms:
            made.observe()
        return made

    return make


@pytest.mark.parametrize(
    ("seen_ms", "marks"),
    [
        ((), ()),
        ((3.0, 3.1), ()),
        ((3.7, 3.7), ()),
        ((3.8, 3.8), ("host-busy",)),
        ((3.0, 6.0), ("host-busy",)),
        ((3.0, 3.0, 3.0, 5.0), ()),  # one hiccup
        ((2.0, 2.4), ()),
        ((2.0, 3.2), ("host-busy",)),  # a reference that a quieter moment has bettered
    ],
)
def test_a_pace_slower_than_the_fastest_of_the_process_is_marked(watch, seen_ms, marks):
    assert watch(*seen_ms).marks() == marks


def test_the_reference_outlives_a_measurement(watch):
    first = watch(2.0, 2.0)
    host_pace.time._times = iter([0.003])
    second = HostWatch()
    second.observe()
    assert (first.marks(), second.marks()) == ((), ("host-busy",))


def test_nothing_seen_is_not_busy():
    assert not is_busy([], 0.003)


def test_a_real_loop_takes_time_and_the_fastest_is_kept():
    pace = Pace()
    runs = [pace.run() for _ in range(3)]
    assert 0 < pace.fastest_s <= min(runs)

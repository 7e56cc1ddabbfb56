"""A candidate that was timed on a busy host is timed once more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from thunder_tune.values.job import Limits, Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Timing
from thunder_tune.workers import session


def timing_of(latency_ms, *marks):
    both = (latency_ms, latency_ms)
    return Timing(samples_ms=both, latency_ms=latency_ms, ci95_ms=both, marks=marks)


QUIET, BUSY = timing_of(3.0), timing_of(2.5, "clock-changed", "host-busy")


@pytest.fixture
def time_one(monkeypatch):
    def time_one(*timings, took_s=10.0, limit_s=120.0):
        left = list(timings)
        clock = iter([0.0, took_s])
        monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr(session, "time_step", lambda *args, **how: left.pop(0))
        setting = Setting(source=ModelSource(name="mlp"), limits=Limits(time_s=limit_s))
        bench = SimpleNamespace(setting=setting, timed_inputs=())
        return session._time(None, bench), len(timings) - len(left)

    return time_one


@pytest.mark.parametrize(
    ("timings", "kept", "times"),
    [
        ((QUIET, BUSY), QUIET, 1),
        ((timing_of(3.0, "power-capped"), BUSY), timing_of(3.0, "power-capped"), 1),
        ((BUSY, QUIET), QUIET, 2),
        ((BUSY, timing_of(2.0, "host-busy")), timing_of(2.0, "host-busy"), 2),
        ((BUSY, timing_of(4.0, "host-busy")), BUSY, 2),
    ],
)
def test_the_quieter_timing_is_kept(time_one, timings, kept, times):
    assert time_one(*timings) == (kept, times)


@pytest.mark.parametrize(("took_s", "times"), [(48.0, 2), (49.0, 1)])
def test_only_where_time_allows(time_one, took_s, times):
    assert time_one(BUSY, QUIET, took_s=took_s)[1] == times

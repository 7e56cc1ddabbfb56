from __future__ import annotations

from contextlib import contextmanager

import pytest

from thunder_tune.testing.fake_pool import FakeClock
from thunder_tune.workers import workbench
from thunder_tune.workers.workbench import PhaseClock


class Lease:
    """Of a device that others hold for so many seconds, and stop this process meanwhile."""

    def __init__(self, clock, busy_s=0.0, stopped_s=0.0):
        self.clock, self.busy_s, self.stopped_s = clock, busy_s, stopped_s
        self.stood_s, self.asked = 0.0, []

    def stood_still_s(self):
        return self.stood_s

    @contextmanager
    def held(self, waiting, *, quietly=False):
        self.asked.append(quietly)
        if self.busy_s:
            waiting()
            self.clock.now_s += self.busy_s
            self.stood_s += self.stopped_s
        yield


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(workbench.time, "perf_counter", clock)
    return clock


@pytest.mark.parametrize("stopped_s", [0.0, 2.0])
def test_a_wait_in_the_midst_of_a_phase_counts_as_a_wait(clock, monkeypatch, stopped_s):
    lease = Lease(clock, busy_s=5.0, stopped_s=stopped_s)
    monkeypatch.setattr(workbench, "lease_of", lambda device: lease)
    told = []
    phases = PhaseClock(lambda p: told.append((p.phase, p.subject)), "cuda")
    with phases.during("compile", "eager"):
        started = phases.now()
        clock.now_s += 1.0
        with phases.alone():
            clock.now_s += 0.5
        clock.now_s += 0.25
        assert phases.now() - started == pytest.approx(1.75)
    assert phases.seconds == pytest.approx({"compile": 1.75, "wait": 5.0})
    assert told == [("compile", "eager"), ("wait", "eager"), ("compile", "eager")]
    assert lease.asked == [False]


def test_a_free_device_costs_no_word(clock, monkeypatch):
    lease = Lease(clock)
    monkeypatch.setattr(workbench, "lease_of", lambda device: lease)
    told = []
    phases = PhaseClock(lambda p: told.append(p.phase), "cuda")
    with phases.during("compile"), phases.alone():
        clock.now_s += 2.0
    assert phases.seconds == pytest.approx({"compile": 2.0})
    assert told == ["compile"]

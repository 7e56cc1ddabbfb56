from __future__ import annotations

import pytest

from thunder_tune.testing.fake_pool import FakeClock
from thunder_tune.values.job import Limits, Progress
from thunder_tune.workers import phase_watch
from thunder_tune.workers.phase_watch import PhaseWatch


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(phase_watch.time, "monotonic", clock)
    return clock


def test_a_phase_is_overdue_after_its_limit(clock):
    watch = PhaseWatch(Limits(compile_s=100.0), since=clock())
    watch.begin(Progress(phase="compile"))
    clock.now_s += 100.0
    assert watch.overdue() == ""
    clock.now_s += 0.1
    assert watch.overdue() == "took longer than the limit of 100 s"


def test_a_limit_that_a_comparison_has_cut_is_told_as_such(clock):
    watch = PhaseWatch(Limits(compile_s=100.0), since=clock(), deadline=clock() + 40.0)
    watch.begin(Progress(phase="compile", subject="eager"))
    clock.now_s += 21.0
    said = "took longer than the limit of 20 s, its part of the time that was left"
    assert watch.overdue() == said


@pytest.mark.parametrize(
    ("before_s", "limit_s"), [(10.0, 20.0), (20.0, 30.0), (1000.0, 34.0), (None, 20.0)]
)
def test_who_was_slow_before_may_be_slow_again(clock, before_s, limit_s):
    known = {} if before_s is None else {"eager": 0.1, "thunder": before_s}
    limits = Limits(compile_s=100.0)
    watch = PhaseWatch(limits, since=clock(), deadline=clock() + 40.0, build_s=known)
    watch.begin(Progress(phase="compile", subject="thunder"))
    assert watch.limit_s == pytest.approx(limit_s)
    watch.begin(Progress(phase="compile", subject="eager"))
    assert watch.limit_s == pytest.approx(20.0)


def test_the_unknown_one_may_take_what_the_others_would_not_need_again(clock):
    limits = Limits(compile_s=1_000.0)
    watch = PhaseWatch(limits, since=clock(), deadline=clock() + 500.0, build_s={"eager": 1.0})
    watch.begin(Progress(phase="compile", subject="eager"))
    clock.now_s += 80.0
    watch.begin(Progress(phase="compile", subject="thunder"))
    assert watch.limit_s == pytest.approx(420.0 - 1.25 * 80.0)


def test_a_wait_in_its_midst_does_not_give_a_phase_its_limit_anew(clock):
    watch = PhaseWatch(Limits(compile_s=100.0), since=clock())
    watch.begin(Progress(phase="compile"))
    for _ in range(4):
        clock.now_s += 20.0
        watch.begin(Progress(phase="wait"))
        clock.now_s += 1_000.0
        watch.begin(Progress(phase="compile"))
    clock.now_s += 20.0
    assert watch.overdue() == ""
    clock.now_s += 0.1
    assert watch.overdue() == "took longer than the limit of 100 s"
    assert watch.seconds()["compile"] == pytest.approx(100.1)
    assert watch.seconds()["wait"] == pytest.approx(4_000.0)
    watch.begin(Progress(phase="check"))
    watch.begin(Progress(phase="compile"))
    assert watch.overdue() == ""


def test_what_follows_a_wait_for_another_subject_has_its_own_limit(clock):
    watch = PhaseWatch(Limits(compile_s=100.0), since=clock())
    watch.begin(Progress(phase="compile", subject="a"))
    clock.now_s += 90.0
    watch.begin(Progress(phase="wait", subject="a"))
    watch.begin(Progress(phase="compile", subject="b"))
    clock.now_s += 20.0
    assert watch.overdue() == ""


def test_standing_still_is_a_wait_and_not_held_against_the_phase(clock):
    watch = PhaseWatch(Limits(compile_s=100.0), since=clock())
    watch.begin(Progress(phase="compile"))
    for second in range(200):
        clock.now_s += 1.0
        watch.look(stands_still=second >= 50)
    assert watch.overdue() == ""
    assert watch.seconds() == {"start": 0.0, "compile": 50.0, "wait": 150.0}

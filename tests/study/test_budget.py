from __future__ import annotations

import pytest

from thunder_tune.study.budget import LARGEST_RESERVE, Budget
from thunder_tune.testing.fake_pool import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


def test_without_a_limit_nothing_is_ever_spent(clock):
    budget = Budget(time_s=None, clock=clock)
    budget.reserve(1e6)
    clock.now_s += 1e6
    assert (budget.left_s, budget.search_left_s) == (None, None)
    assert budget.allows_another
    assert not budget.is_spent
    assert budget.patience_s(1.0) == 1.0


def test_the_search_ends_before_the_reserve(clock):
    budget = Budget(time_s=100.0, clock=clock)
    budget.reserve(30.0)
    budget.note(10.0)
    clock.now_s += 59.0
    assert budget.allows_another
    clock.now_s += 1.0
    assert not budget.allows_another  # a typical trial would end on the reserve
    assert not budget.is_spent
    clock.now_s += 10.0
    assert budget.is_spent
    assert budget.left_s == 30.0


def test_the_reserve_is_a_share_of_the_whole_at_most(clock):
    budget = Budget(time_s=100.0, clock=clock)
    budget.reserve(500.0)
    assert budget.reserve_s == 100.0 * LARGEST_RESERVE


def test_waits_no_longer_than_the_search_lasts(clock):
    budget = Budget(time_s=10.0, clock=clock)
    clock.now_s += 9.5
    assert budget.patience_s(1.0) == pytest.approx(0.5)
    clock.now_s += 5.0
    assert budget.patience_s(1.0) > 0.0  # a wait of nothing would spin


def test_the_typical_trial_follows_the_latest(clock):
    budget = Budget(time_s=None, clock=clock)
    assert budget.typical_s == 0.0
    for _ in range(5):
        budget.note(60.0)
    for _ in range(15):
        budget.note(4.0)
    assert budget.typical_s == 4.0


def test_forecast_counts_workers_and_confirmation(clock):
    budget = Budget(time_s=None, clock=clock)
    assert budget.forecast_s(20, workers=4) is None, "no trial has ended yet"
    budget.note(10.0)
    budget.reserve(50.0)
    assert budget.forecast_s(20, workers=4) == 100.0
    limited = Budget(time_s=60.0, clock=clock)
    assert limited.forecast_s(20, workers=1) == 60.0
    limited.note(10.0)
    assert limited.forecast_s(20, workers=1) == 60.0

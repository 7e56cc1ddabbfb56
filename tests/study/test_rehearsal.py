from __future__ import annotations

from dataclasses import replace

import pytest

from thunder_tune.study import compare_now
from thunder_tune.study.rehearsal import rehearse
from thunder_tune.testing.fake_pool import FakePool, synthetic_description
from thunder_tune.values.comparison import Contender
from thunder_tune.values.space import PROGRAM

SLOW = "torch.compile:max-autotune"
BUILD_S = {"eager": 0.1, SLOW: 80.0, "torch.compile": 20.0, "thunder": 90.0}


class SlowToBuild(FakePool):
    """First calls last as planted, by program."""

    def wait(self, timeout_s):
        return [
            (ticket, replace(r, first_call_s=BUILD_S[r.candidate.assignment[PROGRAM]]))
            for ticket, r in super().wait(timeout_s)
        ]


def contenders(*names):
    return tuple(Contender(name=n, assignment={PROGRAM: n}, is_baseline=True) for n in names)


@pytest.fixture
def pool_of(dimensions, costs):
    def pool_of(capacity=5, **planted):
        return SlowToBuild(
            synthetic_description(dimensions()), costs(**planted), capacity=capacity
        )

    return pool_of


def test_who_is_built_soonest_comes_first(spec, pool_of):
    pool = pool_of()
    asked = contenders(SLOW, "torch.compile", "eager")
    shown = rehearse(spec().setting, asked, pool=pool, limit_s=None, clock=pool.clock)
    assert [c.name for c in shown.cast(asked)] == ["eager", "torch.compile", SLOW]
    assert shown.failures == {}


def test_who_fails_or_is_late_sits_out_with_the_reason(spec, pool_of):
    pool = pool_of(
        hangs=frozenset({(PROGRAM, SLOW)}), failures={(PROGRAM, "eager"): "out-of-memory"}
    )
    asked = contenders(SLOW, "torch.compile", "eager")
    started = pool.clock.now_s
    shown = rehearse(spec().setting, asked, pool=pool, limit_s=60.0, clock=pool.clock)
    assert pool.clock.now_s - started == pytest.approx(60.0)
    assert [c.name for c in shown.cast(asked)] == ["torch.compile"]
    assert {n: f.kind for n, f in shown.failures.items()} == {
        "eager": "out-of-memory",
        SLOW: "timeout",
    }
    assert "not built within 60 s" in shown.failures[SLOW].message
    assert [c.assignment[PROGRAM] for c in pool.cancelled] == [SLOW]


def test_a_comparison_measures_the_others_in_all_rounds(spec, pool_of, observer):
    pool = pool_of(hangs=frozenset({(PROGRAM, SLOW)}))
    comparison = compare_now(
        spec().setting,
        contenders(SLOW, "torch.compile", "eager"),
        pool=pool,
        observer=observer,
        timeout_s=200.0,
        rehearsed=True,
        clock=pool.clock,
    )
    assert [[c.name for c in job.contenders] for job in pool.compared] == [
        ["eager", "torch.compile"]
    ] * 3
    assert comparison.standing(SLOW).failure.kind == "timeout"
    assert comparison.standing("eager").rounds == 3
    assert [s.name for s in comparison.standings] == [SLOW, "torch.compile", "eager"]


def test_where_all_fail_the_rounds_try_again(spec, pool_of, observer):
    pool = pool_of(failures={(PROGRAM, "eager"): "crash", (PROGRAM, SLOW): "crash"})
    compare_now(
        spec().setting,
        contenders("eager", SLOW),
        pool=pool,
        observer=observer,
        rehearsed=True,
        clock=pool.clock,
    )
    assert [len(job.contenders) for job in pool.compared] == [2, 2, 2]


def test_one_slot_has_nothing_to_gain(spec, pool_of, observer):
    pool = pool_of(capacity=1)
    compare_now(
        spec().setting,
        contenders("eager", SLOW),
        pool=pool,
        observer=observer,
        rehearsed=True,
        clock=pool.clock,
    )
    assert pool.submitted == []


@pytest.mark.parametrize("call", [2, 4])
def test_ctrl_c_leaves_nothing_under_way(spec, dimensions, costs, call):
    pool = FakePool(synthetic_description(dimensions()), costs(), capacity=3, interrupt_at=call)
    with pytest.raises(KeyboardInterrupt):
        rehearse(
            spec().setting,
            contenders(SLOW, "torch.compile", "eager"),
            pool=pool,
            limit_s=None,
            clock=pool.clock,
        )
    assert pool.cancelled


def test_what_no_cache_keeps_is_not_rehearsed_and_comes_last(spec, pool_of, observer):
    pool = pool_of()
    asked = contenders("thunder", "torch.compile", "eager")
    shown = rehearse(spec().setting, asked, pool=pool, limit_s=None, clock=pool.clock)
    assert set(shown.build_s) == {"eager", "torch.compile"}
    assert [c.name for c in shown.cast(asked)] == ["eager", "torch.compile", "thunder"]

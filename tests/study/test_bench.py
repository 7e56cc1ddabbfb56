from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from thunder_tune.study import compare_now
from thunder_tune.testing.fake_pool import (
    CostTable,
    FakeClock,
    FakePool,
    synthetic_description,
)
from thunder_tune.values.comparison import NOT_REACHED, Block, Contender, Round
from thunder_tune.values.space import PROGRAM
from thunder_tune.values.trial import Failure


def contenders(*names):
    return tuple(Contender(name=n, assignment={PROGRAM: n}, is_baseline=True) for n in names)


def test_every_round_is_a_process_of_its_own(spec, dimensions, costs, observer):
    pool = FakePool(synthetic_description(dimensions()), costs())
    comparison = compare_now(
        spec().setting,
        contenders("eager", "torch.compile"),
        pool=pool,
        observer=observer,
        rounds=4,
        blocks=5,
        calls=3,
        clock=pool.clock,
    )
    assert len({r.process_id for r in comparison.rounds}) == 4
    assert len({job.seed for job in pool.compared}) == 4
    assert {(job.blocks, job.calls) for job in pool.compared} == {(5, 3)}
    assert [i for i, _, _ in observer.rounds] == [0, 1, 2, 3]
    assert comparison.reference == "torch.compile"


def test_a_contender_that_hangs_costs_one_round_at_most(spec, dimensions, costs, observer):
    planted = costs(hangs=frozenset({(PROGRAM, "thunder")}))
    pool = FakePool(synthetic_description(dimensions()), planted)
    comparison = compare_now(
        spec().setting,
        contenders("eager", "torch.compile", "thunder"),
        pool=pool,
        observer=observer,
        timeout_s=90.0,
        clock=pool.clock,
    )
    assert pool.clock.now_s - 1_000.0 <= 90.0
    assert [len(job.contenders) for job in pool.compared] == [3, 2, 2]
    assert comparison.standing("thunder").failure.kind == "timeout"
    assert comparison.standing("eager").rounds == 3


def test_who_was_not_reached_is_measured_in_the_rounds_that_follow(
    spec, dimensions, costs, observer, monkeypatch
):
    planted = costs(hangs=frozenset({(PROGRAM, "thunder")}))
    pool = FakePool(synthetic_description(dimensions()), planted)
    late = Failure(kind="timeout", phase="time", message="too late", group=NOT_REACHED)

    def compare(job, timeout_s):
        round_ = FakePool.compare(pool, job, timeout_s)
        if "thunder" not in round_.failures:
            return round_
        return replace(round_, blocks=(), failures={**round_.failures, "eager": late})

    monkeypatch.setattr(pool, "compare", compare)
    comparison = compare_now(
        spec().setting,
        contenders("thunder", "eager"),
        pool=pool,
        observer=observer,
        timeout_s=90.0,
        clock=pool.clock,
    )
    assert [[c.name for c in job.contenders] for job in pool.compared][1:] == [["eager"]] * 2
    assert comparison.standing("thunder").failure.kind == "timeout"
    assert comparison.standing("eager").failure is None
    assert comparison.standing("eager").latency_ms == pytest.approx(20.0, rel=0.01)


def test_where_all_fail_all_are_tried_again(spec, dimensions, costs, observer):
    planted = costs(failures={(PROGRAM, "eager"): "crash", (PROGRAM, "thunder"): "crash"})
    pool = FakePool(synthetic_description(dimensions()), planted)
    compare_now(
        spec().setting,
        contenders("eager", "thunder"),
        pool=pool,
        observer=observer,
        clock=pool.clock,
    )
    assert [len(job.contenders) for job in pool.compared] == [2, 2, 2]


class TestExtraRounds:
    """A candidate that measures 2 % faster, in processes that differ by 3 % or not at all."""

    @pytest.fixture
    def compare(self, spec, observer):
        def compare(process, timeout_s=None, *, lasts_s=10.0):
            clock = FakeClock()
            pool = DifferingPool(process, clock=clock, lasts_s=lasts_s)
            return compare_now(
                spec().setting,
                pool.contenders,
                pool=pool,
                observer=observer,
                rounds=3,
                extra_rounds=3,
                timeout_s=timeout_s,
                clock=clock,
            )

        return compare

    def test_none_where_it_is_sure(self, compare, observer):
        assert len(compare(0.0).rounds) == 3
        assert observer.notices == []

    def test_as_many_as_asked_where_it_is_not(self, compare, observer):
        comparison = compare(0.03)
        assert len({r.process_id for r in comparison.rounds}) == 6
        assert observer.notices == ["not sure yet: 3 more rounds"]
        assert [(i, total) for i, total, _ in observer.rounds][2:4] == [(2, 3), (3, 6)]

    @pytest.mark.parametrize(("timeout_s", "rounds"), [(39.0, 3), (45.0, 4), (100.0, 6)])
    def test_no_more_than_time_allows(self, compare, timeout_s, rounds):
        assert len(compare(0.03, timeout_s).rounds) == rounds

    def test_one_that_time_cuts_short_does_not_count(self, compare):
        comparison = compare(0.03, 45.0, lasts_s=lambda number: 10.0 if number <= 3 else 20.0)
        assert len(comparison.rounds) == 3
        assert comparison.standing("c").failure is None

    def test_an_interrupt_leaves_the_first_ones_standing(self, spec, observer):
        def lasts_s(number):
            if number == 5:
                raise KeyboardInterrupt
            return 10.0

        clock = FakeClock()
        pool = DifferingPool(0.03, clock=clock, lasts_s=lasts_s)
        asked = {"pool": pool, "observer": observer, "extra_rounds": 3, "clock": clock}
        comparison = compare_now(spec().setting, pool.contenders, **asked)
        assert len(comparison.rounds) == 4
        assert comparison.standing("c").rounds == 4
        assert observer.notices[-1] == "interrupted: the rounds before stand as they are"


class DifferingPool(FakePool):
    """Every process makes the candidate faster or slower by the same amount, in turn."""

    contenders = (
        Contender(name="b", assignment={PROGRAM: "eager"}, is_baseline=True),
        Contender(name="c", assignment={PROGRAM: "other"}),
    )

    def __init__(self, process, *, clock, lasts_s):
        super().__init__(synthetic_description(()), CostTable(), clock=clock)
        self._process = process
        self._lasts_s = lasts_s if callable(lasts_s) else lambda number: lasts_s

    def compare(self, job, timeout_s):
        self.compared.append(job)
        number = len(self.compared)
        lasts_s = self._lasts_s(number)
        self.clock.now_s += min(lasts_s, timeout_s)
        late = Failure(kind="timeout", phase="time", message="planted timeout")
        if lasts_s > timeout_s:
            return Round(process_id=number, blocks=(), failures={"c": late})
        faster = 0.98 * (1 + self._process * (-1) ** number)
        blocks = tuple(
            Block(contender=name, position=i, samples_ms=(ms,) * 3, started_at=float(i))
            for i, (name, ms) in enumerate([("b", 1.0), ("c", faster)] * 4)
        )
        return Round(process_id=number, blocks=blocks)


def test_the_seams_load_nothing_heavy():
    code = (
        "import sys, thunder_tune.study.pool, thunder_tune.study.observer, thunder_tune.study\n"
        "heavy = {'optuna', 'sqlalchemy', 'torch', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

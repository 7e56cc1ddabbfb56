from __future__ import annotations

import subprocess
import sys

from thunder_tune.study import compare_now
from thunder_tune.testing.fake_pool import FakePool, synthetic_description
from thunder_tune.values.comparison import Contender
from thunder_tune.values.space import PROGRAM


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


def test_the_seams_load_nothing_heavy():
    code = (
        "import sys, thunder_tune.study.pool, thunder_tune.study.observer, thunder_tune.study\n"
        "heavy = {'optuna', 'sqlalchemy', 'torch', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

from __future__ import annotations

import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_tune.errors import ConflictError, InputError, WorkerError
from thunder_tune.storage import Database
from thunder_tune.study import run_study
from thunder_tune.testing.fake_pool import FakeClock, FakePool, synthetic_description
from thunder_tune.values.space import COMPOSED, EXECUTOR, FUSER, PROGRAM, Dimension
from thunder_tune.values.study import BASELINES
from thunder_tune.values.trial import Failure
from thunder_tune.workers.undescribed import undescribed

GLUE_0, GLUE_1, LINEAR = f"{FUSER}glue-0", f"{FUSER}glue-1", f"{EXECUTOR}linear-0"
CPU_BASELINES = [b for b in BASELINES if b != "torch.compile:reduce-overhead"]

NAMES = count()
"""A study of its own for each example that Hypothesis tries in one database."""


def plans(pool, role="search"):
    return [j.candidate.plan_key for j in pool.submitted if j.role == role]


def test_finds_the_best_of_a_planted_space(study, spec, dimensions, costs, database, observer):
    planted = costs(
        choices={(GLUE_0, "torch"): 2.0, (GLUE_1, "inductor"): 1.0, (LINEAR, "cudnn"): 0.5},
        interactions={frozenset({(GLUE_0, "inductor"), (LINEAR, "cudnn")}): -2.0},
    )
    outcome, _ = study(spec(trials=8), dimensions(), planted)
    assert outcome.state == "done"
    assert outcome.stopped == "trials"
    best = outcome.best
    assert {
        GLUE_0: "inductor",
        GLUE_1: "torch",
        LINEAR: "cudnn",
    }.items() <= best.assignment.items()
    assert (best.kind, best.verdict) == ("composed", "faster")
    assert best.speedup == pytest.approx(13.0 / 8.5, rel=0.01)
    assert best.speedup_ci95[0] < best.speedup < best.speedup_ci95[1]
    assert outcome.best_composed == best
    assert outcome.comparison.reference == "torch.compile:max-autotune"
    assert database.study("study").state == "done"
    assert database.comparison("study") == outcome.comparison
    assert next(s.stage for s in observer.statuses) == "describe"
    assert observer.statuses[-1].stage == "done"
    assert [(i, n) for i, n, _ in observer.rounds] == [(0, 3), (1, 3), (2, 3)]


def test_parts_that_win_alone_and_lose_together_do_not_win(study, spec, dimensions, costs):
    parts = ((GLUE_0, "inductor"), (LINEAR, "cudnn"))
    planted = costs(choices=dict.fromkeys(parts, -2.0), interactions={frozenset(parts): 6.0})
    outcome, _ = study(spec(trials=8), dimensions(), planted)
    assert outcome.best.kind == "composed"
    assert sum(outcome.best.assignment[name] == choice for name, choice in parts) == 1
    assert outcome.best.standing.latency_ms == pytest.approx(8.0, rel=0.01)


def test_stores_the_recipe_with_its_evidence(study, spec, dimensions, costs, database):
    outcome, pool = study(spec(trials=8), dimensions(), costs())
    (recipe,) = database.recipes("study")
    assert recipe.digest == outcome.best.digest
    assert recipe.plans[0].assignment == outcome.best.assignment
    assert recipe.plans[0].program_hash == pool.description.program.hash
    assert recipe.plans[0].classes == {c: c for c in ("glue-0", "glue-1", "linear-0")}
    assert recipe.evidence.processes == 3
    assert recipe.evidence.trials == 8
    assert [b.name for b in recipe.evidence.baselines] != []
    assert {b.name for b in recipe.evidence.baselines} == set(CPU_BASELINES)
    assert recipe.evidence.verdict == outcome.best.verdict


def test_confirms_three_composed_and_all_baselines_in_fresh_processes(
    study, spec, dimensions, costs
):
    planted = costs(choices={(GLUE_0, "torch"): 2.0, (LINEAR, "torch"): 1.0})
    outcome, pool = study(spec(trials=8), dimensions(), planted)
    names = [c.name for c in outcome.comparison.contenders]
    assert sum(n.startswith("trial") for n in names) == 3
    assert {c.name for c in outcome.comparison.contenders if c.is_baseline} == set(CPU_BASELINES)
    assert len({r.process_id for r in outcome.comparison.rounds}) == 3
    assert len({job.seed for job in pool.compared}) == 3
    assert len(outcome.top) == 5
    assert all(w.standing.latency_ms for w in outcome.top)


def test_a_whole_program_back_end_may_win(study, spec, dimensions, costs):
    choices = dimensions(whole=("eager", "torch.compile", "tensorrt"))
    planted = costs()
    planted = replace(planted, programs={**planted.programs, "tensorrt": 5.0})
    outcome, _ = study(spec(trials=6), choices, planted)
    assert (outcome.best.kind, outcome.best.verdict) == ("whole-program", "faster")
    assert outcome.best.assignment == {PROGRAM: "tensorrt"}
    assert outcome.best_composed.kind == "composed"
    assert outcome.best_composed.verdict == "faster"
    assert outcome.best_composed.digest != outcome.best.digest


def test_identical_candidates_are_a_tie_and_the_simplest_wins(study, spec, dimensions, costs):
    programs = dict.fromkeys(CPU_BASELINES, 10.0)
    outcome, _ = study(spec(trials=16), dimensions(glue=3, anchors=1), costs(programs=programs))
    assert outcome.counts.complete == 16
    assert outcome.best.verdict == "tie"
    assert outcome.best.assignment == {PROGRAM: "eager"}
    assert outcome.best_composed.verdict == "tie"


def test_tied_composed_candidates_give_the_one_with_fewer_regions(study, spec, dimensions, costs):
    outcome, _ = study(spec(trials=4), dimensions(glue=2, anchors=0), costs())
    assert outcome.counts.complete == 4
    assert outcome.best.verdict == "faster"
    assert {GLUE_0: "torch", GLUE_1: "torch"}.items() <= outcome.best.assignment.items()


def test_a_slower_search_ends_in_a_tie_with_the_best_baseline(study, spec, dimensions, costs):
    outcome, _ = study(spec(trials=4), dimensions(), costs(base_ms=30.0))
    assert outcome.best.assignment == {PROGRAM: "torch.compile:max-autotune"}
    assert (outcome.best.verdict, outcome.best.speedup) == ("tie", 1.0)
    assert outcome.best_composed.verdict == "slower"
    assert outcome.best_composed.speedup < 1.0


def test_a_six_point_space_is_exhausted_after_six(study, spec, dimensions, costs, observer):
    space = (
        *dimensions(glue=1, anchors=1, whole=("eager",)),
        Dimension(name="boundary:none", family="boundary", choices=("a", "b", "c")),
    )
    space = (*space[:1], replace(space[1], choices=("torch", "inductor", "nvfuser")), *space[2:])
    outcome, pool = study(spec(trials=50), space, costs())
    assert outcome.counts.finished == 6
    assert outcome.counts.exhausted
    assert outcome.stopped == "exhausted"
    assert len(plans(pool)) == len(set(plans(pool))) == 6
    assert any("exhausted after 6 trials" in n for n in observer.notices)


def test_failures_are_counted_by_kind_and_the_search_goes_on(study, spec, dimensions, costs):
    planted = costs(failures={(LINEAR, "cudnn"): "compile", (GLUE_0, "inductor"): "wrong"})
    outcome, _ = study(spec(trials=8), dimensions(), planted)
    assert outcome.state == "done"
    assert outcome.counts.finished == 8
    assert outcome.counts.complete == 2
    assert sum(outcome.counts.failed_by_kind.values()) == outcome.counts.failed == 6
    assert set(outcome.counts.failed_by_kind) == {"compile", "wrong"}
    assert outcome.best.assignment[LINEAR] == "torch"


def test_a_failed_baseline_is_data(study, spec, dimensions, costs, database):
    planted = costs(failures={(PROGRAM, "thunder"): "compile"})
    outcome, _ = study(spec(trials=3), dimensions(), planted)
    assert outcome.state == "done"
    assert "thunder" not in {c.name for c in outcome.comparison.contenders}
    stored = {
        r.result.candidate.assignment[PROGRAM]: r.result.state
        for r in database.trials("study", role="baseline")
    }
    assert stored["thunder"] == "failed"


def test_nothing_measurable_is_a_failed_study(study, spec, dimensions, costs, database):
    everything = (COMPOSED, *CPU_BASELINES)
    planted = costs(failures={(PROGRAM, name): "compile" for name in everything})
    outcome, _ = study(spec(trials=50), dimensions(glue=5), planted)
    assert outcome.state == "failed"
    assert outcome.best is None
    assert outcome.counts.failed == 10  # it gives up rather than fail fifty times
    assert outcome.error == (
        "nothing could be measured: all 14 attempts failed; eager: planted compile"
    )
    assert database.study("study").state == "failed"
    assert database.study("study").error == outcome.error


def test_a_model_that_cannot_be_judged_ends_at_once(spec, dimensions, costs, database, observer):
    failure = Failure(kind="not-judgeable", phase="check", message="the output never changes")
    pool = FakePool(synthetic_description(dimensions(), failure=failure), costs())
    outcome = run_study(spec(), pool=pool, database=database, observer=observer, clock=pool.clock)
    assert (outcome.state, outcome.error) == ("failed", "the output never changes")
    assert pool.submitted == []


def test_an_uncaptured_program_is_tuned_by_whole_program_back_ends(
    study, spec, dimensions, costs, observer
):
    planted = costs()
    planted = replace(planted, programs={**planted.programs, "tensorrt": 5.0})
    space = dimensions(glue=0, anchors=0, whole=("eager", "tensorrt"))
    outcome, _ = study(spec(trials=20), space, planted)
    assert outcome.best.assignment == {PROGRAM: "tensorrt"}
    assert outcome.best_composed is None
    assert outcome.counts.finished == 1
    assert any("model.py:3" in n for n in observer.notices)


def test_a_winner_that_fails_on_fresh_inputs_does_not_win(study, spec, dimensions, costs):
    planted = costs(choices={(LINEAR, "cudnn"): -5.0}, inaccurate=frozenset({(LINEAR, "cudnn")}))
    outcome, _ = study(spec(trials=8), dimensions(), planted)
    assert outcome.state == "done"
    assert outcome.best.kind == "whole-program"
    assert outcome.best_composed is None
    assert {s.failure.kind for s in outcome.comparison.standings if s.failure} == {"wrong"}


def test_all_wrong_in_the_confirmation_is_a_failed_study(study, spec, dimensions, costs):
    fresh = frozenset((PROGRAM, name) for name in (COMPOSED, *CPU_BASELINES))
    outcome, _ = study(spec(trials=2), dimensions(), costs(inaccurate=fresh))
    assert outcome.state == "failed"
    assert outcome.error == (
        "no program passed the confirmation in fresh processes (wrong: planted error)"
    )


def test_baselines_are_reused_by_the_next_study(study, spec, dimensions, costs, observer):
    study(spec("first", trials=2), dimensions(), costs())
    outcome, pool = study(spec("second", trials=2), dimensions(), costs())
    assert plans(pool, "baseline") == []
    assert any(n.startswith("baselines reused") for n in observer.notices)
    assert {c.name for c in outcome.comparison.contenders if c.is_baseline} == set(CPU_BASELINES)


def test_keeps_every_worker_busy(study, spec, dimensions, costs, observer):
    outcome, pool = study(spec(trials=12), dimensions(glue=4), costs(), capacity=4)
    assert outcome.counts.complete == 12
    assert len(set(plans(pool))) == 12
    # 2 s to describe, then four baselines and twelve trials of 6 s each in four waves.
    begins = next(s.elapsed_s for s in observer.statuses if s.stage == "confirmation")
    assert begins == pytest.approx(2.0 + 4 * 6.0)


def test_resumes_to_the_asked_number(study, spec, dimensions, costs):
    study(spec(trials=3), dimensions(glue=4), costs())
    outcome, pool = study(spec(trials=8), dimensions(glue=4), costs())
    assert outcome.counts.complete == 8
    assert len(plans(pool)) == 5
    assert plans(pool, "baseline") == []


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(1, 60), capacity=st.integers(1, 3))
def test_resumes_after_interrupts_with_exact_counts(
    spec, dimensions, costs, database, observer, at, capacity
):
    name = f"study-{next(NAMES)}"
    space, planted = dimensions(glue=3), costs(failures={(LINEAR, "cudnn"): "compile"})
    first = FakePool(synthetic_description(space), planted, capacity=capacity, interrupt_at=at)
    asked = spec(name, trials=9)
    options = {"database": database, "observer": observer}
    outcome = run_study(asked, pool=first, **options, clock=first.clock)
    if outcome.state == "interrupted":
        assert outcome.stopped == "interrupted"
        assert database.study(name).state == "interrupted"
        stored = database.trials(name, role="search")
        assert outcome.counts.finished == len(stored)
        second = FakePool(synthetic_description(space), planted, capacity=capacity)
        outcome = run_study(asked, pool=second, **options, clock=second.clock)
    assert outcome.state == "done"
    stored = [r.result for r in database.trials(name, role="search")]
    assert outcome.counts.finished == len(stored) == 9
    assert max(Counter(r.candidate.plan_key for r in stored).values()) == 1
    assert len(database.trials(name, role="baseline")) == 4


def test_what_an_interrupt_cut_short_is_measured_first_on_resume(study, spec, dimensions, costs):
    space = dimensions(glue=6)
    interrupted, first = study(spec(trials=30), space, costs(), interrupt_at=70)
    assert interrupted.state == "interrupted"
    (cut,) = first.cancelled
    _, second = study(spec(trials=30), space, costs())
    assert plans(second)[0] == cut.plan_key


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    glue=st.integers(0, 3),
    anchors=st.integers(0, 2),
    no_effect=st.integers(1, 3),
    trials=st.integers(0, 12),
    capacity=st.integers(1, 3),
    sampler=st.sampled_from(["tpe", "random", "nsgaii"]),
)
def test_never_measures_a_plan_twice(
    spec,
    dimensions,
    costs,
    database,
    observer,
    glue,
    anchors,
    no_effect,
    trials,
    capacity,
    sampler,
):
    space = (
        *dimensions(glue=glue, anchors=anchors),
        Dimension(name="boundary:x", family="boundary", choices=tuple("abc"[:no_effect])),
    )
    pool = FakePool(synthetic_description(space), costs(), capacity=capacity)
    asked = spec(f"study-{next(NAMES)}", trials=trials, sampler=sampler)
    outcome = run_study(asked, pool=pool, database=database, observer=observer, clock=pool.clock)
    distinct = 2 ** (glue + anchors) if glue + anchors else 0
    assert len(set(plans(pool))) == len(plans(pool)) == min(trials, distinct)
    assert not set(plans(pool)) & set(plans(pool, "baseline"))
    assert outcome.counts.finished == min(trials, distinct)
    assert outcome.counts.exhausted == (trials > distinct)


def test_optuna_shares_the_file(study, spec, dimensions, costs, database):
    study(spec(trials=5), dimensions(), costs())
    path = database.url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        tables = {n for (n,) in connection.execute("select name from sqlite_master")}
        (trials,) = connection.execute("select count(*) from trials").fetchone()
        (states,) = connection.execute("select count(distinct state) from trials").fetchone()
    connection.close()
    assert {"studies", "trials", "tt_studies", "tt_trials"} <= tables
    assert (trials, states) == (5, 1)


def test_a_grown_space_keeps_old_trials(study, spec, dimensions, costs, observer):
    planted = costs(choices={(GLUE_0, "torch"): 4.0, (GLUE_0, "nvfuser"): -2.0})
    study(spec(trials=8), dimensions(), planted)
    grown = dimensions(fusers=("torch", "inductor", "nvfuser"))
    outcome, pool = study(spec(trials=18), grown, planted)
    assert outcome.counts.finished == 18
    assert outcome.counts.exhausted is False
    assert len(plans(pool)) == 10
    assert outcome.best.assignment[GLUE_0] == "nvfuser"


def test_another_program_under_the_name_is_a_conflict(
    study, spec, dimensions, costs, database, observer
):
    study(spec(trials=2), dimensions(), costs())
    described = synthetic_description(dimensions())
    described = replace(described, program=replace(described.program, hash="a" * 64))
    pool = FakePool(described, costs())
    with pytest.raises(ConflictError, match="tuned another program"):
        run_study(spec(), pool=pool, database=database, observer=observer, clock=pool.clock)
    assert database.study("study").state == "done"


def test_another_device_under_the_name_is_a_conflict(
    study, spec, dimensions, costs, database, observer
):
    study(spec(trials=2), dimensions(), costs())
    pool = FakePool(synthetic_description(dimensions(), device="other"), costs())
    with pytest.raises(ConflictError, match=r"another device \(device fake other here"):
        run_study(spec(), pool=pool, database=database, observer=observer, clock=pool.clock)


@pytest.mark.parametrize("ran_before", [True, False])
def test_a_model_that_failed_once_goes_on_when_it_is_mended(
    study, spec, dimensions, costs, database, observer, ran_before
):
    if ran_before:
        study(spec(trials=2), dimensions(), costs())
    failure = Failure(kind="model", phase="load", message="no weights")
    broken = FakePool(undescribed(failure), costs())
    asked = spec(trials=4)
    outcome = run_study(
        asked, pool=broken, database=database, observer=observer, clock=broken.clock
    )
    assert (outcome.state, outcome.error) == ("failed", "no weights")
    mended, _ = study(asked, dimensions(), costs())
    assert (mended.state, mended.counts.complete) == ("done", 4)


def test_new_versions_measure_baselines_anew(study, spec, dimensions, costs, database, observer):
    study(spec(trials=2), dimensions(), costs())
    described = synthetic_description(dimensions())
    newer = replace(described.fingerprint, packages={"torch": "2.11.0"})
    pool = FakePool(replace(described, fingerprint=newer), costs())
    outcome = run_study(
        spec(trials=4), pool=pool, database=database, observer=observer, clock=pool.clock
    )
    assert len(plans(pool, "baseline")) == 4
    assert len(plans(pool)) == 2
    assert any("torch 2.11.0 here" in n for n in observer.notices)
    assert sum(c.is_baseline for c in outcome.comparison.contenders) == 4


def test_refuses_an_unknown_sampler(study, spec, dimensions, costs):
    with pytest.raises(InputError, match="unknown sampler 'annealing': use one of tpe, random"):
        study(spec(sampler="annealing"), dimensions(), costs())


def test_tells_the_time_while_it_waits(study, spec, dimensions, costs, observer):
    study(spec(trials=2), dimensions(), costs(build_s=20.0))
    elapsed = [s.elapsed_s for s in observer.statuses if s.stage == "search"]
    steps = [b - a for a, b in pairwise(elapsed)]
    assert max(steps) <= 1.0
    later = [s for s in observer.statuses if s.stage in ("search", "confirmation")]
    assert later[0].left_s is None, "nothing is known before the first trial"
    left = [s.left_s for s in later if s.left_s is not None]
    assert left == sorted(left, reverse=True)
    assert left[-1] > 0.0
    assert observer.statuses[-1].left_s == 0.0


class TestTimeBudget:
    def test_is_kept_with_the_confirmation_in_it(self, study, spec, dimensions, costs, observer):
        clock = FakeClock()
        asked = spec(trials=500, time_budget_s=600.0)
        outcome, pool = study(asked, dimensions(glue=8), costs(), clock=clock)
        assert outcome.stopped == "time"
        assert clock.now_s - 1_000.0 <= 600.0
        assert outcome.counts.complete > 20
        assert len(outcome.comparison.rounds) == 3
        assert len(outcome.comparison.contenders) == 7
        assert pool.cancelled == []
        assert not any("little time" in n for n in observer.notices)

    def test_a_hanging_trial_cannot_eat_the_confirmation(
        self, study, spec, dimensions, costs, observer
    ):
        clock = FakeClock()
        planted = costs(hangs=frozenset({(LINEAR, "cudnn")}))
        asked = spec(trials=500, time_budget_s=300.0)
        outcome, pool = study(asked, dimensions(glue=8), planted, clock=clock)
        assert outcome.state == "done"
        assert outcome.best.kind == "composed"
        assert clock.now_s - 1_000.0 <= 300.0
        assert [c.assignment[LINEAR] for c in pool.cancelled] == ["cudnn"]
        assert outcome.counts.failed == 0
        assert any("gave way to the confirmation" in n for n in observer.notices)

    def test_what_was_cut_short_is_queued_on_resume(self, study, spec, dimensions, costs):
        planted = costs(hangs=frozenset({(LINEAR, "cudnn")}))
        asked = spec(trials=500, time_budget_s=300.0)
        _, first = study(asked, dimensions(glue=8), planted)
        (cut,) = first.cancelled
        _, second = study(spec(trials=3, time_budget_s=300.0), dimensions(glue=8), costs())
        assert plans(second)[:1] == [cut.plan_key]

    def test_baselines_that_eat_it_leave_a_shorter_confirmation(
        self, study, spec, dimensions, costs, observer
    ):
        clock = FakeClock()
        asked = spec(trials=500, time_budget_s=40.0)
        outcome, _ = study(asked, dimensions(glue=8), costs(), clock=clock)
        assert outcome.state == "done"
        assert outcome.stopped == "time"
        assert len(outcome.comparison.rounds) == 3
        assert any("little time is left" in n for n in observer.notices)
        assert clock.now_s - 1_000.0 <= 40.0 + 30.0

    def test_a_hanging_baseline_is_cut_short(self, study, spec, dimensions, costs, observer):
        clock = FakeClock()
        planted = costs(hangs=frozenset({(PROGRAM, "torch.compile:max-autotune")}))
        asked = spec(trials=500, time_budget_s=200.0)
        outcome, _ = study(asked, dimensions(glue=8), planted, clock=clock)
        assert outcome.state == "done"
        assert any(
            "no time for the baselines torch.compile:max-autotune" in n for n in observer.notices
        )
        assert clock.now_s - 1_000.0 <= 210.0

    def test_a_slow_baseline_does_not_hold_the_search_back(
        self, study, spec, dimensions, costs, observer
    ):
        planted = costs(hangs=frozenset({(PROGRAM, "torch.compile:max-autotune")}))
        asked = spec(trials=500, time_budget_s=200.0)
        outcome, _ = study(asked, dimensions(glue=8), planted, capacity=4)
        # 134 s before the confirmation, 6 s a trial, on the three workers that are free.
        assert outcome.counts.complete >= 3 * (134 // 6) - 6
        assert outcome.best_composed is not None
        assert any("no time for the baselines torch" in n for n in observer.notices)

    def test_too_little_for_anything_fails_with_the_reason(self, study, spec, dimensions, costs):
        outcome, _ = study(spec(time_budget_s=3.0), dimensions(), costs())
        assert outcome.state == "failed"
        assert "time budget ended" in outcome.error


@pytest.mark.parametrize("at", [1, 4, 5, 7, 9])
def test_an_interrupt_while_a_result_is_stored_loses_and_doubles_nothing(
    study, spec, dimensions, costs, database, monkeypatch, at
):
    stored = []

    def add_trial(name, result, **options):
        number = type(database).add_trial(database, name, result, **options)
        stored.append(number)
        if len(stored) == at:
            raise KeyboardInterrupt
        return number

    with monkeypatch.context() as patched:
        patched.setattr(database, "add_trial", add_trial)
        outcome, _ = study(spec(trials=5), dimensions(), costs())
    assert outcome.state == "interrupted"
    assert len(database.trials("study")) == at
    assert outcome.counts.finished == max(0, at - 4)
    resumed, _ = study(spec(trials=5), dimensions(), costs())
    assert resumed.counts.complete == 5
    assert [r.number for r in database.trials("study")] == list(range(9))


def test_a_broken_pool_marks_the_study_and_is_raised(
    spec, dimensions, costs, database, observer, monkeypatch
):
    pool = FakePool(synthetic_description(dimensions()), costs())

    def submit(job):
        raise WorkerError("no worker could be started")

    monkeypatch.setattr(pool, "submit", submit)
    with pytest.raises(WorkerError, match="no worker could be started"):
        run_study(spec(), pool=pool, database=database, observer=observer, clock=pool.clock)
    assert database.study("study").state == "failed"
    assert database.study("study").error == "no worker could be started"


def test_two_controllers_share_one_file(spec, dimensions, costs, tmp_path, observer):
    url = str(tmp_path / "shared.db")

    def control(name):
        database = Database.open(url)
        pool = FakePool(synthetic_description(dimensions(glue=4)), costs())
        try:
            return run_study(
                spec(name, trials=10),
                pool=pool,
                database=database,
                observer=observer,
                clock=pool.clock,
            )
        finally:
            database.close()

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(control, ["one", "two"]))
    assert [o.counts.complete for o in outcomes] == [10, 10]

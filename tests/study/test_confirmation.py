from __future__ import annotations

import pytest

from thunder_tune.storage import TrialRecord
from thunder_tune.study.confirmation import ROUNDS, entrants, estimate_s, schedule, warm_up_s
from thunder_tune.values.space import COMPOSED, FUSER, PROGRAM
from thunder_tune.values.trial import Candidate, Failure, Timing, TrialResult

HERE = "key of this machine"


def record(number, assignment, latency_ms, role="search", environment_key=HERE, first_call_s=10.0):
    timing = failure = None
    if latency_ms is None:
        failure = Failure(kind="compile", phase="compile", message="no")
    else:
        timing = Timing(
            samples_ms=(latency_ms,), latency_ms=latency_ms, ci95_ms=(latency_ms, latency_ms)
        )
    result = TrialResult(
        candidate=Candidate(assignment=assignment, plan_key=f"plan-{number}"),
        role=role,
        state="failed" if failure else "complete",
        timing=timing,
        failure=failure,
        first_call_s=first_call_s,
        phase_s={"start": 3.0, "capture": 2.0, "compile": first_call_s, "check": 1.0},
    )
    return TrialRecord(number=number, result=result, environment_key=environment_key)


def baseline(number, name, latency_ms, **options):
    return record(number, {PROGRAM: name}, latency_ms, role="baseline", **options)


def composed(number, latency_ms):
    return record(number, {PROGRAM: COMPOSED, f"{FUSER}g": str(number)}, latency_ms)


@pytest.fixture
def records():
    return [
        baseline(0, "eager", 20.0),
        baseline(1, "torch.compile", 12.0),
        baseline(2, "thunder", None),
        *(composed(3 + i, ms) for i, ms in enumerate((15.0, 9.0, None, 11.0, 10.0))),
    ]


def names(chosen):
    return [e.contender.name for e in chosen]


def test_the_most_important_come_first(records):
    chosen = entrants(records, HERE)
    assert names(chosen) == ["trial 4", "torch.compile", "trial 7", "trial 6", "eager"]
    assert [e.contender.is_baseline for e in chosen] == [False, True, False, False, True]


def test_the_best_overall_enters_where_it_is_a_back_end(records):
    records.append(record(8, {PROGRAM: "tensorrt"}, 5.0))
    assert "tensorrt" in names(entrants(records, HERE))
    records.append(composed(9, 4.0))
    assert "tensorrt" not in names(entrants(records, HERE))


def test_baselines_of_other_versions_do_not_enter(records):
    records[0] = baseline(0, "eager", 20.0, environment_key="older")
    assert "eager" not in names(entrants(records, HERE))
    records.append(baseline(9, "eager", 19.0))
    assert names(entrants(records, HERE)).count("eager") == 1


def test_the_full_confirmation_where_time_allows(records):
    chosen = entrants(records, HERE)
    for left_s in (None, 1e4):
        plan = schedule(chosen, left_s)
        assert len(plan.contenders) == 5
        assert (plan.blocks, plan.calls) == (8, 20)
        assert plan.notice == ""


def test_slow_programs_get_fewer_calls():
    chosen = entrants([baseline(0, "eager", 4_000.0), composed(1, 3_000.0)], HERE)
    plan = schedule(chosen, None)
    assert (plan.blocks, plan.calls) == (3, 2)


def test_short_of_time_blocks_are_cut_before_contenders(records):
    chosen = entrants(records, HERE)
    full_s = estimate_s(records, HERE)
    plan = schedule(chosen, 0.95 * full_s)
    assert len(plan.contenders) == 5
    assert plan.blocks < 8
    assert plan.notice == "little time is left: the confirmation has shorter blocks"


def test_shorter_still_the_least_important_are_left_out(records):
    plan = schedule(entrants(records, HERE), 80.0)
    kept = [c.name for c in plan.contenders]
    assert kept[:2] == ["trial 4", "torch.compile"]
    assert len(kept) < 5
    assert "without" in plan.notice
    assert "eager" in plan.notice


def test_two_stay_however_little_time_is_left(records):
    plan = schedule(entrants(records, HERE), -50.0)
    assert [c.name for c in plan.contenders] == ["trial 4", "torch.compile"]
    assert plan.timeout_s > 0.0


def test_the_estimate_stands_in_for_candidates_to_come(records):
    early = estimate_s(records[:2], HERE)
    late = estimate_s(records, HERE)
    assert early == pytest.approx(late, rel=0.2)
    assert estimate_s([], HERE) == 0.0
    # start and capture, five warm builds and checks at least, in each round
    assert late > ROUNDS * (5.0 + 5 * (5.0 + 1.0))


@pytest.mark.parametrize(
    ("latency_ms", "seconds"), [(0.1, 0.3), (50.0, 0.6), (220.0, 2.64), (2_000.0, 3.0)]
)
def test_warm_ups_of_slow_programs_take_seconds(latency_ms, seconds):
    assert warm_up_s(latency_ms) == pytest.approx(seconds)

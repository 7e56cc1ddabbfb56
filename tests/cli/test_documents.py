from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.cli.documents import (
    error_document,
    run_document,
    winner_document,
)
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.comparison import Standing
from thunder_tune.values.documents import baseline_document, failure_groups
from thunder_tune.values.job import Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.study import Outcome, StudySpec, Winner
from thunder_tune.values.trial import Accuracy, Candidate, Failure, TrialResult

SPEC = StudySpec(name="s", setting=Setting(source=ModelSource(name="mlp")))


def failed(kind: str, message: str, group: str = "") -> TrialResult:
    return TrialResult(
        candidate=Candidate(assignment={}, plan_key="k"),
        role="search",
        state="failed",
        failure=Failure(kind=kind, phase="compile", message=message, group=group),
        first_call_s=3.0,
    )


def test_a_study_without_anything_has_all_keys():
    outcome = Outcome(study="s", state="failed", error="no worker came up")
    document = run_document(outcome, SPEC, baselines={}, recipes={})
    assert set(document) == set(error_document("run", "x"))
    assert document["device"] == "cpu"
    assert document["capture"] == {"front_end": None, "seconds": None, "times": 0}
    assert document["best"] is None
    assert document["error"] == "no worker came up"
    assert {b["failure"] for b in document["baselines"]} == {"not measured"}


def test_a_baseline_that_never_reached_the_confirmation_says_why():
    document = baseline_document("thunder", None, failed("timeout", "ran past 900 s"))
    assert document["failure"] == "timeout: ran past 900 s"
    assert document["latency_ms"] is None


def test_a_baseline_without_a_confirmation_is_not_confirmed():
    result = TrialResult(
        candidate=Candidate(assignment={}, plan_key="k"), role="baseline", state="complete"
    )
    assert baseline_document("thunder", None, result)["failure"] == "not confirmed"


def test_a_model_that_cannot_be_tuned_leaves_device_and_capture_unknown():
    failure = Failure(kind="model", phase="load", message="no weights")
    described = synthetic_description((), failure=failure)
    outcome = Outcome(study="s", state="failed", description=described, error="no weights")
    document = run_document(outcome, SPEC, baselines={}, recipes={})
    assert document["device"] == "cpu"
    assert document["capture"] == {"front_end": None, "seconds": None, "times": 0}


def test_the_first_call_is_the_cold_one():
    standing = Standing(name="eager", latency_ms=2.0, ci95_ms=(1.9, 2.1), first_call_s=0.5)
    assert baseline_document("eager", standing, failed("run", "x"))["first_call_s"] == 3.0
    assert baseline_document("eager", standing)["first_call_s"] == 0.5


@given(number=st.floats(allow_nan=True, allow_infinity=True))
def test_every_number_is_valid_json(number: float):
    standing = Standing(
        name="x",
        latency_ms=number,
        ci95_ms=(number, number),
        accuracy=Accuracy(error_ratio=number, relative_error=number, cosine=number),
        applied=number,
    )
    winner = Winner(
        assignment={},
        kind="composed",
        standing=standing,
        verdict="tie",
        speedup=number,
        speedup_ci95=(number, number),
    )
    for document in (winner_document(winner, {}), baseline_document("x", standing)):
        text = json.dumps(document, allow_nan=False)
        expected = number if math.isfinite(number) else None
        assert json.loads(text)["latency_ms"] == expected


def test_failures_of_one_cause_are_one_group():
    results = [failed("compile", f"layer {i}", "layer #") for i in range(12)]
    results.append(failed("wrong", "error 3 times eager's"))
    groups = failure_groups(results)
    assert [(f.message, n) for f, n in groups] == [("layer 0", 12), ("error 3 times eager's", 1)]

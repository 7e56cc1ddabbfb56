from __future__ import annotations

import gc

import pytest

from thunder_tune.testing.faulty_models import REFERENCE
from thunder_tune.testing.pool_contract import PATIENCE_S, collect
from thunder_tune.values.comparison import Contender
from thunder_tune.values.job import (
    CompareJob,
    DescribeJob,
    Limits,
    MeasureJob,
    Setting,
    TimingRequest,
)
from thunder_tune.values.screening import ScreenJob, class_choices
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import COMPOSED, CUDA_GRAPHS, EXECUTOR, PROGRAM
from thunder_tune.values.trial import Candidate
from thunder_tune.workers import InlinePool
from thunder_tune.workers.session import TrialSession

EAGER = {PROGRAM: "eager"}


def setting(factory: str = "Good", inputs: str = "make_inputs", **limits: float) -> Setting:
    return Setting(
        source=ModelSource(name=REFERENCE + factory, inputs=REFERENCE + inputs),
        limits=Limits(**limits),
        timing=TimingRequest(max_s=0.2),
    )


def measure(pool, assignment, of=None):
    candidate = Candidate(assignment=assignment, plan_key="")
    pool.submit(MeasureJob(setting=of or setting(), candidate=candidate))
    (result,) = collect(pool, 1).values()
    return result


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    pool = InlinePool(log_folder=str(tmp_path_factory.mktemp("logs")))
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def description(pool):
    return pool.describe(DescribeJob(setting=setting()))


def test_what_random_weights_say_of_8_bits_is_noted_where_these_are_admitted(pool):
    low = Setting(source=ModelSource(name="mlp"), policies=("same", "low"))
    random, narrow = pool.describe(DescribeJob(setting=low)).notes
    assert random == "weights are random"
    assert "8 bits" in narrow


@pytest.fixture(scope="module")
def composed(description):
    """Every op as a plain torch call: nothing to compile."""
    choices = {
        d.name: "torch" if "torch" in d.choices else d.choices[0]
        for d in description.space.dimensions
    }
    return {**choices, PROGRAM: COMPOSED}


def test_a_good_model_is_described(description):
    assert description.failure is None
    assert description.program.is_captured
    assert "eager" in description.space.by_name[PROGRAM].choices
    assert description.signature == "float32[1,16]"


def test_a_candidate_is_built_judged_and_timed(pool, composed):
    result = measure(pool, composed)
    assert (result.state, result.failure) == ("complete", None)
    assert result.applied == 1.0
    assert result.accuracy is not None
    assert result.accuracy.policies == {"same": True}
    assert result.timing is not None
    assert result.timing.latency_ms > 0
    assert {"compile", "check", "time"} <= result.phase_s.keys()


def test_a_child_captures_once_for_all_its_composed_candidates(pool, composed):
    results = [measure(pool, composed) for _ in range(3)]
    assert len({r.process_id for r in results}) == 1
    assert {r.captures for r in results} == {1}


def test_collections_do_not_look_at_what_stays_alive(composed):
    session = TrialSession()
    job = MeasureJob(
        setting=setting(), candidate=Candidate(assignment=composed, plan_key="composed")
    )
    before = gc.get_freeze_count()
    try:
        assert session.measure(job, lambda progress: None).failure is None
        frozen = gc.get_freeze_count()
        assert frozen > before + 10_000
        assert session.measure(job, lambda progress: None).failure is None
        assert gc.get_freeze_count() <= frozen, "what a later candidate leaves can be collected"
    finally:
        gc.unfreeze()


def test_a_whole_program_back_end_has_a_process_of_its_own_and_captures_nothing(pool, composed):
    before, eager, after = (measure(pool, a) for a in (composed, EAGER, composed))
    assert len({before.process_id, eager.process_id, after.process_id}) == 3
    assert eager.captures == 0


def test_a_candidate_that_cannot_be_built_fails_and_the_child_goes_on(pool, composed):
    good = measure(pool, composed)
    bad = measure(pool, {**composed, CUDA_GRAPHS: "whole"})  # on a CPU
    assert bad.failure is not None
    assert (bad.failure.kind, bad.failure.phase) == ("compile", "compile")
    assert measure(pool, composed).process_id == good.process_id


def test_a_plan_that_is_not_followed_shows_in_the_share_applied(pool, composed):
    name = next(n for n in composed if n.startswith(EXECUTOR))
    assert measure(pool, {**composed, name: "no-such-executor"}).applied < 1.0


def test_a_round_measures_both_kinds_in_one_process(pool, composed):
    contenders = (
        Contender(name="eager", assignment=EAGER, is_baseline=True),
        Contender(name="unknown", assignment={PROGRAM: "no-such-back-end"}),
        Contender(name="composed", assignment=composed),
    )
    job = CompareJob(setting=setting(), contenders=contenders, blocks=3, calls=2, seed=5)
    round_ = pool.compare(job, PATIENCE_S)
    assert {n: f.kind for n, f in round_.failures.items()} == {"unknown": "compile"}
    names = [b.contender for b in round_.blocks]
    assert sorted(names) == ["composed"] * 3 + ["eager"] * 3
    assert [b.position for b in round_.blocks] == list(range(6))
    assert all(len(b.samples_ms) == 2 for b in round_.blocks)
    assert set(round_.accuracy) == {"eager", "composed"}
    assert round_.applied == {"eager": 1.0, "composed": 1.0}


@pytest.mark.parametrize(
    ("factory", "inputs", "kind", "says"),
    [
        ("Raises", "make_inputs", "model", "7 heads do not divide 16"),
        ("Exits", "make_inputs", "model", "planted exit"),
        ("NoTensor", "make_inputs", "model", "without any tensor"),
        ("broken_factory", "make_inputs", "model", "no checkpoint at weights.pt"),
        ("Good", "make_elsewhere", "model", "made inputs on meta, the model is on cpu"),
        ("Constant", "make_inputs", "not-judgeable", ""),
        ("NotFinite", "make_inputs", "not-judgeable", ""),
        ("OutOfMemory", "make_inputs", "out-of-memory", ""),
        ("Killed", "make_inputs", "crash", "killed by SIGKILL while checking"),
    ],
)
def test_a_faulty_model_is_described_as_such(pool, factory, inputs, kind, says):
    failure = pool.describe(DescribeJob(setting=setting(factory, inputs))).failure
    assert failure is not None
    assert failure.kind == kind
    assert says in failure.message
    assert "\n" not in failure.message
    assert failure.log


def test_a_model_that_hangs_is_ended_and_a_good_one_follows(pool):
    failure = pool.describe(DescribeJob(setting=setting("Hangs", check_s=2.0))).failure
    assert failure is not None
    assert (failure.kind, failure.phase) == ("timeout", "check")
    assert measure(pool, EAGER).state == "complete"


def test_measures_classes_alone(pool, description):
    """What cannot be measured has its reason, the others are measured all the same."""
    known = list(class_choices(description.space))
    choices = {**dict.fromkeys(known, ("torch", "no-such-executor")), "glue-none": ("torch",)}
    pool.submit(ScreenJob(setting=setting(), choices=choices))
    ((_, found),) = pool.wait(PATIENCE_S)
    assert found.failure is None
    by_choice = {(m.class_id, m.choice): m for m in found.measurements}
    assert len(by_choice) == 2 * len(known) + 1
    for class_id in known:
        assert by_choice[class_id, "torch"].latency_ms > 0.0
        assert by_choice[class_id, "no-such-executor"].failure
    assert "not in this program" in by_choice["glue-none", "torch"].failure


def test_classes_of_a_model_that_raises_have_its_failure(pool):
    pool.submit(ScreenJob(setting=setting("Raises"), choices={"linear-0": ("torch",)}))
    ((_, found),) = pool.wait(PATIENCE_S)
    assert found.failure.kind == "model"
    assert found.measurements == ()

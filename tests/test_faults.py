"""Faults that people met in other tuners, with real models in real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.testing.faulty_models import ORDER_VARIABLE, REFERENCE, REST_S
from thunder_tune.testing.pool_contract import collect
from thunder_tune.values.job import Limits, MeasureJob, Setting, TimingRequest
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.study import baselines_for
from thunder_tune.values.trial import Candidate, TrialResult
from thunder_tune.workers import InlinePool

INPUTS = REFERENCE + "make_inputs"
COMPILE_S = 5.0


class Worker:
    """Measures one model in the child processes of one pool."""

    def __init__(
        self, pool: InlinePool, factory: str, device: str, dtype: str = "float32"
    ) -> None:
        source = ModelSource(name=REFERENCE + factory, inputs=INPUTS, device=device, dtype=dtype)
        self._setting = Setting(
            source=source, limits=Limits(compile_s=COMPILE_S), timing=TimingRequest(max_s=0.2)
        )
        self._pool = pool

    def measure(self, program: str = COMPOSED) -> TrialResult:
        candidate = Candidate(assignment={PROGRAM: program}, plan_key=program)
        self._pool.submit(MeasureJob(setting=self._setting, candidate=candidate))
        (result,) = collect(self._pool, 1).values()
        return result


@pytest.fixture(scope="module")
def order(tmp_path_factory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("orders") / "order"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ORDER_VARIABLE, str(path))
        yield path


@pytest.fixture(scope="module")
def pool(tmp_path_factory, order) -> Iterator[InlinePool]:
    # Its processes inherit the environment, and the next one starts before it is needed.
    pool = InlinePool(log_folder=str(tmp_path_factory.mktemp("logs")))
    yield pool
    pool.close()


def test_a_construct_no_front_end_knows_is_named_and_back_ends_are_tuned(
    pool, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["space", "--model", REFERENCE + "Uncaptured", "--inputs", INPUTS]
    assert run([*words, "--device", "cpu", "--json"]) == 0
    captured = capsys.readouterr()
    assert "no front end could capture the model: " in captured.err
    document = json.loads(captured.out)
    assert document["program"]["front_end"] == "none"
    (programs,) = (d for d in document["dimensions"] if d["name"] == PROGRAM)
    assert set(baselines_for("cpu")) <= set(programs["choices"])
    (reason,) = (e["reason"] for e in programs["excluded"] if e["choice"] == COMPOSED)
    assert "(unfold) by mul_" in reason
    assert "faulty_models.py:" in reason
    assert Worker(pool, "Uncaptured", "cpu").measure("eager").state == "complete"


class TestAnswers:
    """A candidate gives faulty answers; the process goes on with the next one."""

    @pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def judged(self, request, pool, order):
        worker = Worker(pool, "Plants", request.param, "bfloat16")
        order.write_text("")
        assert worker.measure().failure is None  # the references are made by now

        def judged(fault: str) -> TrialResult:
            order.write_text(fault)
            return worker.measure()

        return judged

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            ("never written", "unwritten"),
            ("last tile skipped", "wrong"),
            ("last tile of the sum skipped", "wrong"),
            ("float16 overflow", "not-finite"),
            ("constant", "wrong"),
            ("right on one input", "wrong"),
        ],
    )
    def test_a_planted_fault_is_a_failure_of_its_kind(self, judged, fault, kind):
        result = judged(fault)
        assert (result.state, result.failure.kind) == ("failed", kind)
        assert result.failure.phase == "check"
        assert result.timing is None
        assert judged("").failure is None

    def test_an_answer_nearer_to_the_truth_than_eager_is_accepted(self, judged):
        result = judged("nearer to the truth")
        assert result.failure is None
        assert result.accuracy.error_ratio < 1.0


class TestWhileItRuns:
    """A candidate that was well begins to misbehave."""

    @pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def worker(self, request, pool, order) -> Worker:
        order.write_text("")
        return Worker(pool, "Obeys", request.param)

    def test_python_between_graphs_counts(self, worker, order):
        order.write_text("rest")
        result = worker.measure()
        assert (result.state, result.failure) == ("complete", None)
        assert result.timing.latency_ms >= 1e3 * REST_S

    def test_memory_is_free_for_the_next_candidate_of_the_same_process(self, worker, order):
        before = worker.measure()
        order.write_text("hoard")
        hoarding = worker.measure()
        order.write_text("")
        after = worker.measure()
        assert hoarding.failure.kind == "out-of-memory"
        assert (before.failure, after.failure) == (None, None)
        assert len({r.process_id for r in (before, hoarding, after)}) == 1

    def test_one_that_never_ends_is_killed_at_its_limit_and_the_next_is_measured(
        self, worker, order
    ):
        assert worker.measure().failure is None
        order.write_text("spin")
        spinning = worker.measure()
        order.write_text("")
        assert (spinning.failure.kind, spinning.failure.phase) == ("timeout", "compile")
        assert f"limit of {COMPILE_S:.3g} s" in spinning.failure.message
        assert worker.measure().failure is None

"""What every worker pool must do, whatever runs its jobs; a test class binds it to a pool.

The pool answers with `thunder_tune.testing.scripted_session`. Bind it so:

    class TestMyPool(WorkerPoolContract):
        @pytest.fixture
        def pool(self): ...
"""

from __future__ import annotations

import os
import time

import psutil
import pytest

from thunder_tune.study.pool import WorkerPool
from thunder_tune.testing.scripted_session import ACT, AT
from thunder_tune.values.comparison import Contender
from thunder_tune.values.job import CompareJob, DescribeJob, Limits, MeasureJob, Setting
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Candidate, TrialResult

PATIENCE_S = 60.0
"""Long enough for a loaded machine to start a process; no test waits for it to run out."""

SETTING = Setting(
    source=ModelSource(name="scripted"),
    limits=Limits(compile_s=2.0, host_memory_bytes=400 * 2**20),
)


def trial(act: str = "well", *, setting: Setting = SETTING, at: str = "compile") -> MeasureJob:
    """Return a job whose candidate does something to its process."""
    candidate = Candidate(assignment={ACT: act, AT: at}, plan_key=f"{act} at {at}")
    return MeasureJob(setting=setting, candidate=candidate)


def contender(name: str, act: str = "well", at: str = "compile") -> Contender:
    """Return a contender that does something to its process."""
    return Contender(name=name, assignment={ACT: act, AT: at})


def collect(pool: WorkerPool, count: int) -> dict[int, TrialResult]:
    """Wait for so many results."""
    results: dict[int, TrialResult] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(results) < count and time.monotonic() < deadline:
        results.update((t, r) for t, r in pool.wait(1.0) if isinstance(r, TrialResult))
    return results


def run(pool: WorkerPool, job: MeasureJob) -> TrialResult:
    """Run one job alone."""
    ticket = pool.submit(job)
    return collect(pool, 1)[ticket]


class WorkerPoolContract:
    """The tests; each leaves the pool usable."""

    def test_describes_a_model(self, pool: WorkerPool) -> None:
        """The description comes from a child, not from this process."""
        description = pool.describe(DescribeJob(setting=SETTING))
        assert description.failure is None
        assert description.program.front_end == "dynamo"
        assert description.notes != (str(os.getpid()),)

    @pytest.mark.parametrize("act", ["kill", "defect"])
    def test_a_model_that_takes_its_process_down_is_described_as_a_failure(
        self, pool: WorkerPool, act: str
    ) -> None:
        """Not as an exception."""
        setting = Setting(source=ModelSource(name=f"scripted:{act}"))
        failure = pool.describe(DescribeJob(setting=setting)).failure
        assert failure is not None
        assert (failure.kind, failure.phase) == ("crash", "capture")

    def test_every_ticket_gets_its_own_result(self, pool: WorkerPool) -> None:
        """Also when more jobs are submitted than can run."""
        jobs = [trial(at=phase) for phase in ("load", "compile", "check", "time", "capture")]
        tickets = {pool.submit(job): job for job in jobs}
        results = collect(pool, len(jobs))
        assert {t: r.candidate for t, r in results.items()} == {
            t: job.candidate for t, job in tickets.items()
        }
        assert {r.state for r in results.values()} == {"complete"}
        assert pool.wait(0.0) == []

    @pytest.mark.parametrize(
        ("act", "kind", "says"),
        [
            ("hang", "timeout", "longer than the limit of 2 s"),
            ("spin", "timeout", "longer than the limit of 2 s"),
            ("exit", "crash", "exited with status 3 while compiling"),
            ("kill", "crash", "killed by SIGKILL while compiling"),
            ("segfault", "crash", "killed by SIGSEGV while compiling"),
            ("defect", "crash", "planted defect"),
            ("eat", "out-of-memory", "of host memory; the limit is 0.39 GiB"),
        ],
    )
    def test_a_fault_is_classified_and_the_next_candidate_is_measured(
        self, pool: WorkerPool, act: str, kind: str, says: str
    ) -> None:
        """One test for each way in which a candidate takes its process down."""
        result = run(pool, trial(act))
        assert result.state == "failed"
        assert result.failure is not None
        assert (result.failure.kind, result.failure.phase) == (kind, "compile")
        assert says in result.failure.message
        assert "\n" not in result.failure.message
        assert run(pool, trial()).state == "complete"

    def test_a_comparison_goes_on_without_who_fails_or_crashes(self, pool: WorkerPool) -> None:
        """In the build or in the blocks; the others have all their blocks from one process."""
        job = CompareJob(
            setting=SETTING,
            contenders=(
                contender("good"),
                contender("refused", "fail"),
                contender("crashes", "segfault"),
                contender("hangs", "hang"),
                contender("dies later", "kill", at="time"),
                contender("good too"),
            ),
            blocks=3,
            calls=2,
        )
        round_ = pool.compare(job, PATIENCE_S)
        kinds = {name: failure.kind for name, failure in round_.failures.items()}
        assert kinds == {
            "refused": "compile",
            "crashes": "crash",
            "hangs": "timeout",
            "dies later": "crash",
        }
        measured = [block.contender for block in round_.blocks]
        assert sorted(measured) == ["good"] * 3 + ["good too"] * 3
        assert round_.process_id > 0
        assert run(pool, trial()).state == "complete"

    def test_a_comparison_without_time_fails_by_timeout(self, pool: WorkerPool) -> None:
        """Every contender has its failure, none is forgotten."""
        contenders = (contender("a"), contender("b"))
        job = CompareJob(setting=SETTING, contenders=contenders)
        round_ = pool.compare(job, 0.0)
        assert {n: f.kind for n, f in round_.failures.items()} == {"a": "timeout", "b": "timeout"}
        assert round_.blocks == ()

    def test_screens_classes_and_survives_those_that_crash(self, pool: WorkerPool) -> None:
        """Each job has its answer: measurements, or why there are none."""
        jobs = [ScreenJob(setting=SETTING, choices={name: ("a", "b")}) for name in ("c", "kill")]
        tickets = {pool.submit(job): next(iter(job.choices)) for job in jobs}
        answers: dict[str, object] = {}
        while len(answers) < len(tickets):
            answers.update((tickets[t], answer) for t, answer in pool.wait(PATIENCE_S))
        well, killed = answers["c"], answers["kill"]
        assert isinstance(well, Screening)
        assert [(m.choice, m.latency_ms) for m in well.measurements] == [("a", 1.0), ("b", 1.0)]
        assert isinstance(killed, Screening)
        assert killed.failure is not None
        assert killed.failure.kind == "crash"

    def test_cancel_kills_what_runs_and_the_pool_goes_on(self, pool: WorkerPool) -> None:
        """Cancelled jobs never arrive."""
        patient = Setting(source=SETTING.source, limits=Limits(compile_s=10 * PATIENCE_S))
        for _ in range(pool.capacity + 2):
            pool.submit(trial("hang", setting=patient))
        pool.cancel()
        assert pool.wait(PATIENCE_S) == []
        assert run(pool, trial()).state == "complete"

    def test_leaves_no_descendant_of_a_crashed_child(self, pool: WorkerPool) -> None:
        """Neither one of its group nor one that left it."""
        parents = {run(pool, trial(act)).process_id for act in ("fork", "detach")}
        assert len(_left_behind(parents)) == 2
        for _ in range(pool.capacity):
            pool.submit(trial("kill"))
        collect(pool, pool.capacity)
        pool.cancel()  # ends also the child that no crash came to
        assert not _left_behind(parents)


def _left_behind(parents: set[int]) -> set[int]:
    """Return the living processes that `Acts.fork` and `Acts.detach` started in these children."""
    found = set()
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        started_here = any(command.endswith(f"signal.pause()  # of {pid}") for pid in parents)
        if started_here and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.pid)
    return found

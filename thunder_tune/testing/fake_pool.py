"""A worker pool without processes: a planted cost table, a clock of its own, planted faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

from thunder_tune.values.comparison import Block, Contender, Round
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob
from thunder_tune.values.program import Cell, CellClass, Op, Program, TensorSpec
from thunder_tune.values.screening import ClassMeasurement, Screening, ScreenJob
from thunder_tune.values.space import COMPOSED, EXECUTOR, FUSER, PROGRAM, Dimension, SearchSpace
from thunder_tune.values.trial import (
    Accuracy,
    Candidate,
    Failure,
    FailureKind,
    State,
    Timing,
    TrialResult,
)

Choice = tuple[str, str]
"""A dimension's name and one of its choices."""


class FakeClock:
    """A clock that moves only when told; call it for the time in seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """What each candidate costs, and how it fails.

    Attributes:
        base_ms: Latency of a composed program before its choices.
        programs: Latency of each whole-program back end, milliseconds.
        choices: Milliseconds that a choice adds to a composed program.
        interactions: Milliseconds that choices add when all of them are made.
        failures: How a choice fails, whatever else is chosen.
        hangs: Choices that never end.
        noise: Relative standard deviation of one timed call.
        build_s: Seconds from the start of building to the first result.
        compare_build_s: The same with warm compile caches.
        inaccurate: Choices that the confirmation, on fresh inputs, judges wrong.
        marks: What disturbs every measurement.
    """

    base_ms: float = 10.0
    programs: Mapping[str, float] = field(default_factory=dict)
    choices: Mapping[Choice, float] = field(default_factory=dict)
    interactions: Mapping[frozenset[Choice], float] = field(default_factory=dict)
    failures: Mapping[Choice, FailureKind] = field(default_factory=dict)
    hangs: frozenset[Choice] = frozenset()
    noise: float = 0.002
    build_s: float = 5.0
    compare_build_s: float = 1.0
    inaccurate: frozenset[Choice] = frozenset()
    marks: tuple[str, ...] = ()

    def latency_ms(self, assignment: Mapping[str, str]) -> float:
        """Return the true latency of a candidate."""
        back_end = assignment.get(PROGRAM, COMPOSED)
        if back_end != COMPOSED:
            return self.programs[back_end]
        made = set(assignment.items())
        extra = sum(ms for choice, ms in self.choices.items() if choice in made)
        joint = sum(ms for together, ms in self.interactions.items() if together <= made)
        return self.base_ms + extra + joint

    def failure(self, assignment: Mapping[str, str]) -> Failure | None:
        """Return how a candidate fails, None where it works."""
        for choice in assignment.items():
            if choice in self.failures:
                kind = self.failures[choice]
                return Failure(kind=kind, phase="compile", message=f"planted {kind}", group=kind)
        return None

    def does_hang(self, assignment: Mapping[str, str]) -> bool:
        """Return whether a candidate never ends."""
        return any(choice in self.hangs for choice in assignment.items())


def synthetic_description(
    dimensions: Sequence[Dimension], *, device: str = "cpu", failure: Failure | None = None
) -> Description:
    """Describe a made-up program with a class for each executor and fuser dimension."""
    classes: list[CellClass] = []
    cells: list[Cell] = []
    ops: list[Op] = []
    spec = TensorSpec(shape=(4,), dtype="float32")
    for d in dimensions:
        if not d.name.startswith((EXECUTOR, FUSER)):
            continue
        index, class_id = len(ops), d.name.partition(":")[2]
        kind = "linear" if d.name.startswith(EXECUTOR) else "glue"
        ops.append(
            Op(
                index=index,
                graph=0,
                name=f"fake.{kind}",
                kind=kind,
                inputs=(spec,),
                outputs=(spec,),
                is_view=False,
                class_id=class_id,
            )
        )
        cells.append(Cell(graph=0, ops=(index,), class_id=class_id))
        classes.append(
            CellClass(
                id=class_id,
                loose_id=class_id,
                kind=kind,
                count=1,
                ops=(f"fake.{kind}",),
                examples=(index,),
            )
        )
    program = Program(
        front_end="dynamo" if ops else "none",
        hash="f" * 64,
        loose_hash="e" * 64,
        ops=tuple(ops),
        cells=tuple(cells),
        classes=tuple(classes),
        reason="" if ops else "the forward reads a file (model.py:3)",
    )
    return Description(
        program=program,
        space=SearchSpace(dimensions=tuple(dimensions)),
        fingerprint=Fingerprint(device=f"fake {device}", capability="none"),
        capture_s=1.5,
        signature="(float32[4])",
        failure=failure,
    )


class FakePool:
    """A `thunder_tune.study.pool.WorkerPool` in memory and in virtual time.

    Args:
        description: What `describe` returns.
        costs: The planted truth.
        capacity: Jobs that run at once.
        clock: Moved by every job.
        seed: Of the noise.
        interrupt_at: Number of the call (`describe`, `submit`, `wait`, `compare`, from 1) that
            raises KeyboardInterrupt instead.
    """

    def __init__(
        self,
        description: Description,
        costs: CostTable,
        *,
        capacity: int = 1,
        clock: FakeClock | None = None,
        seed: int = 0,
        interrupt_at: int | None = None,
    ) -> None:
        self.description = description
        self.costs = costs
        self.clock = clock or FakeClock()
        self.submitted: list[MeasureJob] = []
        self.screened: list[ScreenJob] = []
        self.compared: list[CompareJob] = []
        self.cancelled: list[Candidate] = []
        self.is_closed = False
        self._capacity = capacity
        self._random = Random(seed)
        self._running: dict[int, tuple[float, MeasureJob | ScreenJob]] = {}
        self._queued: list[tuple[int, MeasureJob | ScreenJob]] = []
        self._tickets = 0
        self._calls = 0
        self._interrupt_at = interrupt_at

    @property
    def capacity(self) -> int:
        """Number of jobs that run at once."""
        return self._capacity

    def describe(self, job: DescribeJob) -> Description:
        """Return the planted description after two virtual seconds."""
        self._count()
        self.clock.now_s += 2.0
        return self.description

    def submit(self, job: MeasureJob | ScreenJob) -> int:
        """Start or queue a job."""
        self._count()
        if isinstance(job, ScreenJob):
            self.screened.append(job)
        else:
            self.submitted.append(job)
        self._tickets += 1
        self._queued.append((self._tickets, job))
        self._start()
        return self._tickets

    def wait(self, timeout_s: float) -> list[tuple[int, TrialResult | Screening]]:
        """Move the clock to the next finished job, at most by `timeout_s`."""
        self._count()
        until = self.clock.now_s + timeout_s
        first = min((end for end, _ in self._running.values()), default=float("inf"))
        self.clock.now_s = max(self.clock.now_s, min(first, until))
        ended = [t for t, (end, _) in self._running.items() if end <= self.clock.now_s]
        finished = [(ticket, self._answer(self._running.pop(ticket)[1])) for ticket in ended]
        self._start()
        return finished

    def compare(self, job: CompareJob, timeout_s: float) -> Round:
        """Time all contenders in blocks; those that do not fit in `timeout_s` time out."""
        self._count()
        self.compared.append(job)
        start = self.clock.now_s
        self.clock.now_s += 2.0
        failures, able = {}, []
        for contender in job.contenders:
            failure = self.costs.failure(contender.assignment) or self._wrong(contender)
            ran_s = self.costs.compare_build_s + self._blocks_s(job, contender)
            late = self.clock.now_s + ran_s - start > timeout_s
            if self.costs.does_hang(contender.assignment) or late:
                self.clock.now_s = start + timeout_s
                failure = Failure(kind="timeout", phase="compile", message="planted timeout")
            if failure is not None:
                failures[contender.name] = failure
                continue
            self.clock.now_s += ran_s
            able.append(contender)
        blocks = []
        for _ in range(job.blocks):
            self._random.shuffle(able)
            for contender in able:
                samples = self._samples(contender.assignment, job.calls)
                blocks.append((contender.name, samples))
        return Round(
            process_id=10_000 + len(self.compared),
            blocks=tuple(
                Block(contender=name, position=i, samples_ms=samples, started_at=start + i)
                for i, (name, samples) in enumerate(blocks)
            ),
            accuracy={c.name: _accuracy(job.setting.policies) for c in able},
            applied={c.name: 1.0 for c in able},
            first_call_s={c.name: self.costs.compare_build_s for c in able},
            peak_memory_bytes={c.name: None for c in able},
            failures=failures,
            marks=self.costs.marks,
        )

    def cancel(self) -> None:
        """Forget what runs or is queued."""
        jobs = [job for _, job in (*self._running.values(), *self._queued)]
        self.cancelled += [job.candidate for job in jobs if isinstance(job, MeasureJob)]
        self._running.clear()
        self._queued.clear()

    def close(self) -> None:
        """Note that the pool was closed."""
        self.cancel()
        self.is_closed = True

    def _count(self) -> None:
        self._calls += 1
        if self._calls == self._interrupt_at:
            raise KeyboardInterrupt

    def _start(self) -> None:
        while self._queued and len(self._running) < self._capacity:
            ticket, job = self._queued.pop(0)
            hangs = isinstance(job, MeasureJob) and self.costs.does_hang(job.candidate.assignment)
            end = float("inf") if hangs else self.clock.now_s + self.costs.build_s + 1.0
            self._running[ticket] = (end, job)

    def _samples(self, assignment: Mapping[str, str], count: int) -> tuple[float, ...]:
        true_ms = self.costs.latency_ms(assignment)
        return tuple(
            true_ms * max(0.5, self._random.gauss(1.0, self.costs.noise)) for _ in range(count)
        )

    def _blocks_s(self, job: CompareJob, contender: Contender) -> float:
        if self.costs.failure(contender.assignment):
            return 0.0
        return job.blocks * job.calls * self.costs.latency_ms(contender.assignment) / 1e3

    def _wrong(self, contender: Contender) -> Failure | None:
        if any(choice in self.costs.inaccurate for choice in contender.assignment.items()):
            return Failure(kind="wrong", phase="check", message="planted error")
        return None

    def _answer(self, job: MeasureJob | ScreenJob) -> TrialResult | Screening:
        return self._screening(job) if isinstance(job, ScreenJob) else self._result(job)

    def _screening(self, job: ScreenJob) -> Screening:
        """Measure choices alone: a hundred milliseconds, and what the choice adds."""
        return Screening(
            measurements=tuple(
                ClassMeasurement(
                    class_id=class_id,
                    choice=choice,
                    latency_ms=100.0
                    + sum(
                        ms
                        for (name, c), ms in self.costs.choices.items()
                        if (name.partition(":")[2], c) == (class_id, choice)
                    ),
                )
                for class_id, choices in job.choices.items()
                for choice in choices
            )
        )

    def _result(self, job: MeasureJob) -> TrialResult:
        failure = self.costs.failure(job.candidate.assignment)
        timing = None
        if failure is None:
            samples = self._samples(job.candidate.assignment, 15)
            ordered = sorted(samples)
            timing = Timing(
                samples_ms=samples,
                latency_ms=median(samples),
                ci95_ms=(ordered[3], ordered[-4]),
                marks=self.costs.marks,
            )
        state: State = "failed" if failure else "complete"
        return TrialResult(
            candidate=job.candidate,
            role=job.role,
            state=state,
            timing=timing,
            accuracy=None if failure else _accuracy(job.setting.policies),
            failure=failure,
            first_call_s=None if failure else self.costs.build_s,
            applied=None if failure else 1.0,
            phase_s={"start": 1.0, "capture": 1.0, "compile": self.costs.build_s, "time": 1.0},
            worker="fake",
            process_id=1,
            started_at=self.clock.now_s,
            captures=1,
        )


def _accuracy(policies: Sequence[str]) -> Accuracy:
    return Accuracy(
        error_ratio=1.0,
        relative_error=1e-6,
        cosine=1.0,
        policies=dict.fromkeys(policies, True),
        inputs=4,
    )

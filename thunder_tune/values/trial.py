"""Candidates, what was measured of them, and how they failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["start", "load", "capture", "compile", "wait", "check", "time"]
"""What a worker is doing; each has a time limit of its own. It waits for the device lease."""

FailureKind = Literal[
    "model",  # the model or its factory raised, or gives no tensor
    "capture",  # no front end could capture the program
    "compile",  # building the candidate or its first call raised
    "run",  # a later call raised
    "wrong",  # the result differs from the reference by more than the policy allows
    "not-finite",  # NaN or infinity where the reference has none
    "wrong-shape",  # other shapes, types or number of outputs
    "unwritten",  # part of an output was never written
    "unstable",  # two runs on one input differ beyond rounding
    "not-judgeable",  # the reference is constant, or does not vary with the input
    "timeout",  # a phase ran past its limit
    "out-of-memory",  # host or device
    "crash",  # the process died
    "worker-lost",  # the worker or its machine died, twice
]

State = Literal["complete", "failed", "pruned"]
Role = Literal["baseline", "search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a candidate gave no result: a value, never an exception in the loop.

    Attributes:
        kind: What happened.
        phase: When it happened.
        message: One line for people, with what to do where that is known.
        group: Text shared by failures of one cause (numbers and names of ops taken out).
        log: File with the whole output, or "".
    """

    kind: FailureKind
    phase: Phase
    message: str
    group: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Repeated times of one program in one process, in milliseconds.

    Attributes:
        samples_ms: Every repeat, in run order.
        latency_ms: Median of the repeats.
        ci95_ms: 95 % interval of that median; says how repeatable this one process is.
        host_ms: Time the host needs to issue one call, or None where it is the same thing (CPU).
        clock: "device" (CUDA events) or "host".
        warmup_calls: Calls before the first repeat.
        marks: What disturbed the measurement ("clock-changed", "device-shared", ...).
    """

    samples_ms: tuple[float, ...]
    latency_ms: float
    ci95_ms: tuple[float, float]
    host_ms: float | None = None
    clock: Literal["device", "host"] = "host"
    warmup_calls: int = 0
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAccuracy:
    """How far one tensor of the results is from its reference.

    Attributes:
        name: "output", "output['logits']" or "gradient of head.weight".
        error_ratio: As in `Accuracy`, of this tensor alone.
        relative_error: Likewise.
        cosine: Smallest cosine similarity over inputs.
        part_error: Largest relative error of a few dozen neighbouring elements, on any input.
    """

    name: str
    error_ratio: float
    relative_error: float
    cosine: float
    part_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far a candidate is from the reference.

    Attributes:
        error_ratio: Worst output's median over inputs of error(candidate) / error(eager model in
            its own precision), both against the reference; 1 is as good as eager.
        relative_error: Worst output's median of ||out - ref|| / ||ref||.
        cosine: Smallest cosine similarity over outputs and inputs.
        top1_agreement: Share of rows whose largest output agrees with the reference, divided by
            eager's own share; None where the output has no class dimension.
        gradient_error_ratio: As `error_ratio` over the parameters' gradients; None in inference.
        policies: Verdict under each policy asked for, by policy name.
        reference: "float64" or "float32".
        inputs: Number of inputs judged, the held-out one included.
        tensors: Every output, then the gradients with the largest error ratios, worst first.
    """

    error_ratio: float
    relative_error: float
    cosine: float
    top1_agreement: float | None = None
    gradient_error_ratio: float | None = None
    policies: Mapping[str, bool] = field(default_factory=dict)
    reference: str = "float64"
    inputs: int = 0
    tensors: tuple[TensorAccuracy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An assignment to be tried, and the key of the plan that it resolves to."""

    assignment: Mapping[str, str]
    plan_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One candidate's outcome.

    Attributes:
        candidate: What was tried.
        role: "baseline" or "search".
        state: "complete" (measured and accepted by the study's policy), "failed" or "pruned".
        timing: Present when it was timed.
        accuracy: Present when it was judged; also for a candidate judged wrong.
        failure: Present unless complete.
        peak_memory_bytes: Largest device memory (CUDA) or None.
        releasable_bytes: Memory of weights that are read in packed form only, which a recipe
            applied with `release_weights` gives up.
        first_call_s: Seconds from the start of building to the first result.
        applied: Share of ops that run where the plan says, 0 to 1; None if never built.
        phase_s: Seconds spent in each phase.
        overhead_s: Seconds of the trial that are neither building, checking nor timing.
        worker: Name of the worker.
        process_id: Child process that ran it.
        started_at: Unix time, seconds.
        captures: Captures made so far by that child process.
    """

    candidate: Candidate
    role: Role
    state: State
    timing: Timing | None = None
    accuracy: Accuracy | None = None
    failure: Failure | None = None
    peak_memory_bytes: int | None = None
    releasable_bytes: int = 0
    first_call_s: float | None = None
    applied: float | None = None
    phase_s: Mapping[str, float] = field(default_factory=dict)
    overhead_s: float = 0.0
    worker: str = ""
    process_id: int = 0
    started_at: float = 0.0
    captures: int = 0

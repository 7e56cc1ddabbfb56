"""Values to store and to send: plausible ones, and strategies for implausible ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from thunder_tune.values.anatomy import Anatomy, Costs, KernelTime, Statement, Text
from thunder_tune.values.comparison import Block, Comparison, Contender, Round, Standing
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import Description, Setting
from thunder_tune.values.program import Cell, CellClass, Op, Program, TensorSpec
from thunder_tune.values.recipe import BaselineEvidence, Evidence, Recipe, TunedPlan
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import Dimension, Excluded, SearchSpace
from thunder_tune.values.study import StudySpec
from thunder_tune.values.trial import (
    Accuracy,
    Candidate,
    Failure,
    FailureKind,
    Role,
    State,
    Timing,
    TrialResult,
)

MACHINE = Fingerprint(
    device="NVIDIA H200",
    capability="sm_90",
    driver="570.1",
    cuda="12.8",
    python="3.11.7",
    packages={"torch": "2.11.0", "lightning-thunder": "0.2.6"},
)


def make_setting(**changes: Any) -> Setting:  # noqa: ANN401 - fields of Setting or ModelSource
    """Return a setting of the model "mlp"; fields of its source are set alike."""
    of_source = {k: changes.pop(k) for k in list(changes) if k in ModelSource.__slots__}
    return Setting(source=ModelSource(**{"name": "mlp", **of_source}), **changes)


def make_spec(name: str = "study", **changes: Any) -> StudySpec:  # noqa: ANN401
    """Return a study's specification with `make_setting`'s setting unless one is given."""
    return StudySpec(**{"name": name, "setting": make_setting(), **changes})


def make_program(hash_: str = "a" * 64, *, reason: str = "") -> Program:
    """Return a program of one linear."""
    tensor = TensorSpec(shape=(4, 8), dtype="float32")
    op = Op(
        index=0,
        graph=0,
        name="torch.nn.functional.linear",
        kind="linear",
        inputs=(tensor, tensor),
        outputs=(tensor,),
        is_view=False,
        class_id="linear-0",
    )
    linear = CellClass(
        id="linear-0", loose_id="linear-l", kind="linear", count=1, ops=(op.name,), examples=(0,)
    )
    return Program(
        front_end="dynamo",
        hash=hash_,
        loose_hash="b" * 64,
        ops=(op,),
        cells=(Cell(graph=0, ops=(0,), class_id="linear-0"),),
        classes=(linear,),
        reason=reason,
    )


def make_description(
    program: Program | None = None, fingerprint: Fingerprint = MACHINE
) -> Description:
    """Return what a worker might have found out."""
    dimension = Dimension(
        name="program",
        family="whole-program",
        choices=("composed", "eager"),
        excluded=(Excluded(choice="thunder", reason="not installed"),),
    )
    return Description(
        program=program or make_program(),
        space=SearchSpace(dimensions=(dimension,)),
        fingerprint=fingerprint,
        capture_s=1.5,
        signature="(4, 8) float32",
        failure=Failure(kind="not-judgeable", phase="check", message="constant"),
        notes=("weights are random", "Größe \u2028 \0"),
    )


def make_result(
    name: str = "composed",
    *,
    role: Role = "search",
    latency_ms: float = 1.0,
    failure: FailureKind | None = None,
    state: State | None = None,
) -> TrialResult:
    """Return a complete result, or a failed one without a timing where `failure` is given."""
    timing = Timing(
        samples_ms=(latency_ms, latency_ms / 3), latency_ms=latency_ms, ci95_ms=(0.5, 2.5)
    )
    why = Failure(kind=failure, phase="compile", message="no") if failure else None
    return TrialResult(
        candidate=Candidate(assignment={"program": name}, plan_key="c" * 64),
        role=role,
        state=state or ("failed" if failure else "complete"),
        timing=None if failure else timing,
        failure=why,
    )


def make_comparison(latency_ms: float = 1.0) -> Comparison:
    """Return a comparison of two contenders, one of which failed, in one round."""
    failure = Failure(kind="crash", phase="time", message="died", group="died", log="x.log")
    round_ = Round(
        process_id=7,
        blocks=(
            Block(contender="eager", position=0, samples_ms=(latency_ms, 0.1), started_at=1e9),
        ),
        accuracy={"eager": Accuracy(error_ratio=1.0, relative_error=0.0, cosine=float("nan"))},
        applied={"eager": 1.0},
        peak_memory_bytes={"eager": None},
        failures={"best": failure},
        marks=("clock-changed",),
    )
    return Comparison(
        contenders=(
            Contender(name="eager", assignment={"program": "eager"}, is_baseline=True),
            Contender(name="best", assignment={"program": "composed"}),
        ),
        rounds=(round_,),
        reference="eager",
        standings=(
            Standing(name="eager", latency_ms=latency_ms, ci95_ms=(0.1, float("inf"))),
            Standing(name="best", failure=failure),
        ),
    )


def make_recipe(*hashes: str, latency_ms: float = 1.0) -> Recipe:
    """Return a recipe with one plan for each exact hash ("a..." unless given)."""
    return Recipe(
        model="mlp",
        source=ModelSource(name="mlp"),
        kind="composed",
        plans=tuple(
            TunedPlan(
                signature=f"plan {position}",
                program_hash=hash_,
                program_loose_hash="b" * 64,
                assignment={"program": "composed"},
                classes={"linear-0": "linear-l"},
            )
            for position, hash_ in enumerate(hashes or ("a" * 64,))
        ),
        fingerprint=MACHINE,
        evidence=Evidence(
            study="study",
            date="2026-01-02",
            latency_ms=latency_ms,
            ci95_ms=(0.9, 1.1),
            verdict="faster",
            speedup=1.5,
            speedup_ci95=(1.4, 1.6),
            baselines=(BaselineEvidence(name="eager", latency_ms=None, failure="crash"),),
        ),
    )


def make_anatomy() -> Anatomy:
    """Return an anatomy of two statements, with the code of the region among them."""
    costs = Costs(
        clock="device",
        latency_ms=1.2,
        work_ms=1.0,
        kernels=(
            KernelTime(name="gemm", times=2, ms=0.75),
            KernelTime(name="triton_poi_fused_add", times=1, ms=0.25),
        ),
    )
    return Anatomy(
        device=MACHINE.device,
        date="2026-01-02T03:04:05+00:00",
        statements=(
            Statement(
                number=1,
                name="linear",
                place="torch",
                ops=("linear",),
                times=2,
                is_region=False,
                ms=0.75,
            ),
            Statement(
                number=2,
                name="",
                place="inductor",
                ops=("add", "mul"),
                times=1,
                is_region=True,
                ms=0.25,
            ),
        ),
        texts=(
            Text(title="forward", text="def forward(x): ..."),
            Text(title="#2 inductor0: generated by Inductor", text="async_compile.triton(...)"),
        ),
        costs=costs,
        baselines={"torch.compile": costs},
    )


_anything = st.text(st.characters())  # lone surrogates and NUL too
_floats = st.floats()
_digests = st.text("0123456789abcdef", min_size=64, max_size=64)


@st.composite
def trial_results(draw: st.DrawFn) -> TrialResult:
    """Draw results with any floats and any text, whether they make sense or not."""
    few = st.dictionaries(_anything, _floats, max_size=3)
    failures = st.builds(
        Failure,
        kind=st.sampled_from(["wrong", "crash", "out-of-memory"]),
        phase=st.sampled_from(["load", "time"]),
        message=_anything,
        group=_anything,
        log=_anything,
    )
    timings = st.builds(
        Timing,
        samples_ms=st.lists(_floats | st.floats(width=32), max_size=20).map(tuple),
        latency_ms=_floats,
        ci95_ms=st.tuples(_floats, _floats),
        host_ms=st.none() | _floats,
        clock=st.sampled_from(["device", "host"]),
        marks=st.lists(_anything, max_size=2).map(tuple),
    )
    accuracies = st.builds(
        Accuracy,
        error_ratio=_floats,
        relative_error=_floats,
        cosine=_floats,
        top1_agreement=st.none() | _floats,
        policies=st.dictionaries(_anything, st.booleans(), max_size=2),
    )
    assignment = draw(st.dictionaries(_anything, _anything, max_size=3))
    return TrialResult(
        candidate=Candidate(assignment=assignment, plan_key=draw(_digests)),
        role=draw(st.sampled_from(["baseline", "search"])),
        state=draw(st.sampled_from(["complete", "failed", "pruned"])),
        timing=draw(st.none() | timings),
        accuracy=draw(st.none() | accuracies),
        failure=draw(st.none() | failures),
        peak_memory_bytes=draw(st.none() | st.integers(0, 2**48)),
        first_call_s=draw(st.none() | _floats),
        phase_s=draw(few),
        worker=draw(_anything),
        started_at=draw(_floats),
    )

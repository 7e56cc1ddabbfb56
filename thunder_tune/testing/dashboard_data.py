"""Databases for the dashboard: a plausible one, and one with very many trials."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import func, insert, make_url, select

from thunder_tune.storage import Database
from thunder_tune.storage.documents import encode, pack
from thunder_tune.storage.sessions import Sessions
from thunder_tune.storage.tables import FailureRow, MeasurementRow, StudyRow, TrialRow, now
from thunder_tune.testing.sample_values import (
    make_anatomy,
    make_comparison,
    make_description,
    make_recipe,
    make_setting,
    make_spec,
)
from thunder_tune.values.codec import to_data
from thunder_tune.values.trial import Accuracy, Candidate, Failure, Timing, TrialResult

BASELINES = ("eager", "torch.compile", "thunder")
CHOICES = ("torch", "inductor", "nvfuser", "cudnn")


def fill(database: Database, *, trials: int = 24, log: str = "/nowhere/worker.log") -> None:
    """Store a finished study "vit" with a recipe, and a running study "bert" without a result."""
    database.create_study(
        make_spec("vit", setting=make_setting(name="vit_b_16", device="cuda"), trials=trials)
    )
    database.save_description("vit", make_description())
    for result in results(trials):
        if result.failure is not None:
            result = replace(result, failure=replace(result.failure, log=log))
        database.add_trial("vit", result)
    database.save_comparison("vit", make_comparison())
    recipe = make_recipe()
    if recipe.evidence is not None:
        recipe = replace(recipe, evidence=replace(recipe.evidence, study="vit"))
    database.save_recipe("vit", recipe)
    database.save_anatomy(recipe, make_anatomy())
    database.update_study("vit", state="done")
    database.create_study(make_spec("bert", setting=make_setting(name="bert_large")))


def results(trials: int, *, dimensions: int = 6, seed: int = 0) -> Iterator[TrialResult]:
    """Make baselines, then search trials of which every eighth fails."""
    draw = random.Random(seed)
    for i, name in enumerate(BASELINES):
        yield _measured({"program": name}, 12.0 + i, 1.0, draw, is_baseline=True)
    for i in range(trials):
        assignment = {"program": "composed"}
        chosen = [draw.randrange(len(CHOICES)) for _ in range(dimensions)]
        assignment |= {f"executor:linear-{d:08x}": CHOICES[c] for d, c in enumerate(chosen)}
        if i % 8 == 5:
            yield _failed(assignment, i)
        else:
            latency = 8.0 + sum(c / (2 + d) for d, c in enumerate(chosen)) + draw.random()
            yield _measured(assignment, latency, 0.5 + draw.random(), draw)


def fill_many(database: Database, study: str, trials: int, *, dimensions: int = 20) -> None:
    """Store very many trials of a new study in one transaction."""
    database.create_study(make_spec(study, trials=trials))
    database.save_description(study, make_description())
    sessions = Sessions(make_url(database.url))
    with sessions.transaction(write=True) as session:
        owner = session.scalars(select(StudyRow).where(StudyRow.name == study)).one().id
        first = (session.scalar(select(func.max(TrialRow.id))) or 0) + 1
        rows: dict[type, list[dict[str, object]]] = {
            TrialRow: [],
            MeasurementRow: [],
            FailureRow: [],
        }
        for number, result in enumerate(results(trials, dimensions=dimensions)):
            for table, row in _rows(result, first + number):
                rows[table].append(row)
            rows[TrialRow][-1] |= {"study_id": owner, "number": number}
        for table, found in rows.items():
            session.execute(insert(table), found)
    sessions.close()


def _rows(result: TrialResult, trial_id: int) -> Iterator[tuple[type, dict[str, object]]]:
    data, timing, failure = to_data(result), result.timing, result.failure
    told = data.pop("failure")
    if timing is not None:
        del data["timing"]["samples_ms"]
        encoding, blob = pack(timing.samples_ms)
        repeats = len(timing.samples_ms)
        yield (
            MeasurementRow,
            {"trial_id": trial_id, "repeats": repeats, "encoding": encoding, "samples": blob},
        )
    if failure is not None:
        yield (
            FailureRow,
            {
                "trial_id": trial_id,
                "kind": failure.kind,
                "phase": failure.phase,
                "cause": failure.group,
                "document": encode(told),
            },
        )
    yield (
        TrialRow,
        {
            "id": trial_id,
            "role": result.role,
            "state": result.state,
            "plan_key": result.candidate.plan_key,
            "latency_ms": timing.latency_ms if timing else None,
            "document": encode(data),
            "created_at": now(),
        },
    )


def _measured(
    assignment: dict[str, str],
    latency_ms: float,
    error: float,
    draw: random.Random,
    *,
    is_baseline: bool = False,
) -> TrialResult:
    samples = tuple(latency_ms * (1 + 0.01 * draw.random()) for _ in range(20))
    return TrialResult(
        candidate=Candidate(assignment=assignment, plan_key="c" * 64),
        role="baseline" if is_baseline else "search",
        state="complete",
        timing=Timing(
            samples_ms=samples,
            latency_ms=sorted(samples)[10],
            ci95_ms=(min(samples), max(samples)),
            clock="device",
            warmup_calls=5,
        ),
        accuracy=Accuracy(
            error_ratio=error,
            relative_error=0.01,
            cosine=0.9999,
            policies={"same": True},
            inputs=4,
        ),
        peak_memory_bytes=int(latency_ms * 2**26),
        first_call_s=3.5,
        applied=1.0,
        phase_s={"load": 1.0, "compile": 2.5, "check": 0.2, "time": 0.4},
        worker="worker-0",
        process_id=4711,
        started_at=1.7e9,
    )


def _failed(assignment: dict[str, str], number: int) -> TrialResult:
    return TrialResult(
        candidate=Candidate(assignment=assignment, plan_key="d" * 64),
        role="search",
        state="failed",
        failure=Failure(
            kind="compile" if number % 2 else "wrong",
            phase="compile",
            message=f"no kernel for shape {number}",
            group="no kernel for shape",
        ),
        phase_s={"compile": 1.0},
        worker="worker-1",
    )

"""The JSON objects of the web API; lists have the shapes that commands print with --json."""

from __future__ import annotations

import math
from typing import Any

from thunder_tune.dashboards.insight import DimensionEffect, FailureGroup
from thunder_tune.dashboards.source import Progress
from thunder_tune.dashboards.views import RunView
from thunder_tune.storage import LeaseRecord, Machine, StudyRecord, TrialRecord
from thunder_tune.storage.listing import trial_document
from thunder_tune.study.lease import Life
from thunder_tune.values.codec import to_data
from thunder_tune.values.comparison import Comparison
from thunder_tune.values.documents import Document, failure_text, measured_document, pair
from thunder_tune.values.job import Description
from thunder_tune.values.recipe import Recipe


def study_document(
    summary: Document, record: StudyRecord, how_far: Progress, found: Description | None
) -> Document:
    """Return a study: what `thunder-tune status --json` prints, and what it was asked."""
    return {
        **summary,
        "requested": how_far.requested,
        "complete": how_far.complete,
        "failed": how_far.failed,
        "pruned": how_far.pruned,
        "spent_s": how_far.spent_s,
        "left_s": how_far.left_s,
        "error": record.error or None,
        "source": to_data(record.spec.setting.source),
        "policies": list(record.spec.setting.policies),
        "preset": record.spec.setting.preset,
        "description": found and description_document(found),
    }


def description_document(found: Description) -> Document:
    """Return what a worker found out, without the program's ops."""
    return {
        "signature": found.signature,
        "front_end": found.program.front_end,
        "program_hash": found.program.hash,
        "ops": len(found.program.ops),
        "classes": len(found.program.classes),
        "dimensions": len(found.space.dimensions),
        "capture_s": finite(found.capture_s),
        "fingerprint": to_data(found.fingerprint),
        "notes": list(found.notes),
        "failure": failure_text(found.failure) or None,
    }


def lease_document(lease: LeaseRecord | None, life: Life) -> Document | None:
    """Return which process runs a study, as `thunder-tune status --json` prints it."""
    if lease is None:
        return None
    return {
        "host": lease.owner.host,
        "process_id": lease.owner.process_id,
        "since": lease.since.isoformat(),
        "life": life,
        "is_cancelled": lease.is_cancelled,
    }


def run_document(run: RunView) -> Document:
    """Return a study that runs, and what its workers have done."""
    return {
        "study": run.study,
        "controller": lease_document(run.lease, run.life),
        "workers": [
            {
                "name": w.name,
                "results": w.trials,
                "failed": w.failed,
                "last_at": w.last.created_at.isoformat(),
            }
            for w in run.workers
        ],
    }


def trial_details(record: TrialRecord) -> Document:
    """Return a trial with every repeat."""
    result = record.result
    timing = result.timing
    return {
        **trial_document(record),
        "plan_key": result.candidate.plan_key,
        "timing": finite(to_data(timing)) if timing else None,
        "accuracy": finite(to_data(result.accuracy)) if result.accuracy else None,
        "failed": to_data(result.failure) if result.failure else None,
        "applied": finite(result.applied),
        "phase_s": finite(dict(result.phase_s)),
        "overhead_s": finite(result.overhead_s),
        "worker": result.worker,
        "process_id": result.process_id,
        "started_at": finite(result.started_at),
        "environment_key": record.environment_key or None,
    }


def comparison_document(comparison: Comparison) -> Document:
    """Return a confirmation: its standings, and which processes it rests on."""
    baselines = {c.name for c in comparison.contenders if c.is_baseline}
    assignments = {c.name: dict(c.assignment) for c in comparison.contenders}
    return {
        "reference": comparison.reference,
        "processes": [r.process_id for r in comparison.rounds],
        "standings": [
            {
                "name": s.name,
                "is_baseline": s.name in baselines,
                "assignment": assignments.get(s.name, {}),
                **measured_document(s),
                "ratio": finite(s.ratio),
                "ratio_ci95": pair(s.ratio_ci95),
                "applied": finite(s.applied),
                "first_call_s": finite(s.first_call_s),
                "rounds": s.rounds,
                "failure": failure_text(s.failure) or None,
            }
            for s in comparison.standings
        ],
    }


def recipe_document(recipe: Recipe) -> Document:
    """Return a recipe as `thunder-tune best --json` prints it."""
    return {**finite(to_data(recipe)), "digest": recipe.digest}


def failure_document(
    group: FailureGroup, message: str, log: str, excerpt: str | None = None
) -> Document:
    """Return failures of one cause with an example, and the end of its log."""
    return {
        "kind": group.kind,
        "message": message,
        "times": group.times,
        "log": log or None,
        "log_end": excerpt,
        "trials": list(group.numbers),
    }


def effect_document(effect: DimensionEffect) -> Document:
    """Return what the choices of one dimension do."""
    return {
        "dimension": effect.dimension,
        "share": effect.share,
        "choices": [
            {
                "choice": c.choice,
                "trials": c.trials,
                "best_ms": c.best_ms,
                "median_ms": c.median_ms,
            }
            for c in effect.choices
        ],
    }


def machine_document(machine: Machine) -> Document:
    """Return a machine and what was measured on it."""
    return {
        "fingerprint": to_data(machine.fingerprint),
        "strict_key": machine.fingerprint.strict_key,
        "trials": machine.trials,
        "studies": list(machine.studies),
        "last_at": machine.last_at.isoformat() if machine.last_at else None,
    }


def finite(data: Any) -> Any:  # noqa: ANN401 - a JSON tree
    """Replace what JSON cannot hold, infinity and NaN, by None."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: finite(item) for key, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(item) for item in data]
    return data

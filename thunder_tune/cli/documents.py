"""The JSON objects that commands print with --json: every key in one place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thunder_tune.values.comparison import Comparison, Standing
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import Description
from thunder_tune.values.program import Program
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import describe
from thunder_tune.values.study import Outcome, StudySpec, Winner, baselines_for
from thunder_tune.values.trial import Failure, TrialResult

if TYPE_CHECKING:
    from thunder_tune.compiler.calls import CallGroup
    from thunder_tune.measure.kernels import KernelProfile
    from thunder_tune.recipes import Difference
    from thunder_tune.study.explaining import Explanation

Document = dict[str, Any]


def error_document(command: str, message: str) -> Document:
    """Return what a command prints that ended with an error: for `run` with all its keys."""
    if command != "run":
        return {"error": message}
    return {
        "study": None,
        "device": None,
        "capture": None,
        "trials": None,
        "baselines": [],
        "best": None,
        "best_composed": None,
        "error": message,
    }


def run_document(
    outcome: Outcome,
    spec: StudySpec,
    *,
    baselines: Mapping[str, TrialResult],
    recipes: Mapping[str, str],
) -> Document:
    """Return the object of `thunder-tune run`.

    Args:
        outcome: How the study ended.
        spec: What it was asked.
        baselines: Search-time results by name: first calls with cold caches, and failures.
        recipes: Paths of the recipe files by digest.
    """
    found, counts = outcome.description, outcome.counts
    if found is not None and found.failure is not None:
        found = None
    device = spec.setting.source.device
    return {
        "study": outcome.study,
        "device": found.fingerprint.device if found else device,
        "capture": {
            "front_end": found.program.front_end if found else None,
            "seconds": _number(found.capture_s) if found else None,
            "times": outcome.captures,
        },
        "trials": {
            "requested": counts.requested,
            "complete": counts.complete,
            "failed": counts.failed,
            "pruned": counts.pruned,
            "exhausted": counts.exhausted,
        },
        "baselines": [
            baseline_document(name, _standing(outcome.comparison, name), baselines.get(name))
            for name in baselines_for(device)
        ],
        "best": winner_document(outcome.best, recipes),
        "best_composed": winner_document(outcome.best_composed, recipes),
        "error": outcome.error or None,
    }


def baseline_document(
    name: str, standing: Standing | None, result: TrialResult | None = None
) -> Document:
    """Return a baseline as confirmed; its first call is that of the study, with cold caches."""
    failure = standing.failure if standing else None
    if standing is None and result is not None:
        failure = result.failure
    first_call_s = (result.first_call_s if result else None) or (
        standing.first_call_s if standing else None
    )
    missing = None
    if standing is None:
        missing = "not measured" if result is None else "not confirmed"
    return {
        "name": name,
        **_measured(standing),
        "first_call_s": _number(first_call_s),
        "failure": failure_text(failure) or missing,
    }


def winner_document(winner: Winner | None, recipes: Mapping[str, str]) -> Document | None:
    """Return a winner, or None where there is none."""
    if winner is None:
        return None
    measured = _measured(winner.standing)
    return {
        "recipe": winner.recipe_path or recipes.get(winner.digest),
        "digest": winner.digest,
        "kind": winner.kind,
        "latency_ms": measured["latency_ms"],
        "ci95_ms": measured["ci95_ms"],
        "error_ratio": measured["error_ratio"],
        "applied": _number(winner.standing.applied),
        "verdict": winner.verdict,
        "speedup": _number(winner.speedup),
        "speedup_ci95": _pair(winner.speedup_ci95),
    }


def space_document(description: Description) -> Document:
    """Return the object of `thunder-tune space`."""
    return {
        "program": program_document(description.program),
        "dimensions": describe(description.space),
    }


def program_document(program: Program) -> Document:
    """Return a program's ops and classes."""
    return {
        "front_end": program.front_end,
        "hash": program.hash,
        "ops": [
            {"index": op.index, "name": op.name, "kind": op.kind, "class": op.class_id}
            for op in program.ops
        ],
        "classes": [
            {"id": c.id, "kind": c.kind, "count": c.count, "ops": list(c.ops)}
            for c in (*program.classes, *program.site_classes)
        ],
    }


def bench_document(
    recipe: Recipe, comparison: Comparison, *, device: str, tuned: Winner | None, error: str
) -> Document:
    """Return the object of `thunder-tune bench`: baselines and recipe, measured just now."""
    names = [c.name for c in comparison.contenders if c.is_baseline]
    winner = winner_document(tuned, {})
    return {
        "recipe": {"model": recipe.model, "digest": recipe.digest, "kind": recipe.kind},
        "device": device,
        "rounds": len(comparison.rounds),
        "processes": [r.process_id for r in comparison.rounds],
        "baselines": [baseline_document(n, _standing(comparison, n)) for n in names],
        "tuned": winner,
        "marks": disturbances(comparison),
        "error": error or None,
    }


def verify_document(
    recipe: Recipe,
    *,
    finding: str | None,
    reason: str,
    change: float | None,
    comparison: Comparison | None,
    now: Winner | None,
    here: Fingerprint | None,
    differences: Sequence[str],
    error: str,
) -> Document:
    """Return the object of `thunder-tune verify`: the claim, what is measured now, the finding."""
    claim = recipe.evidence
    names = [c.name for c in comparison.contenders if c.is_baseline] if comparison else []
    return {
        "recipe": {"model": recipe.model, "digest": recipe.digest, "kind": recipe.kind},
        "finding": finding,
        "reason": reason or None,
        "change_percent": None if change is None else _number(100 * change),
        "stated": claim
        and {
            "device": recipe.fingerprint.device,
            "date": claim.date,
            "latency_ms": claim.latency_ms,
            "speedup": claim.speedup,
            "speedup_ci95": list(claim.speedup_ci95),
        },
        "device": here.device if here else None,
        "differences": list(differences),
        "processes": [r.process_id for r in comparison.rounds] if comparison else [],
        "baselines": [baseline_document(n, _standing(comparison, n)) for n in names],
        "tuned": winner_document(now, {}),
        "marks": disturbances(comparison) if comparison else {},
        "error": error or None,
    }


def disturbances(comparison: Comparison) -> dict[str, int]:
    """Return in how many processes each mark of a disturbance was seen."""
    return dict(Counter(mark for round_ in comparison.rounds for mark in round_.marks))


def explain_document(
    found: Explanation, other: Recipe | None = None, diff: Sequence[Difference] = ()
) -> Document:
    """Return the object of `thunder-tune explain`.

    Args:
        found: The explanation.
        other: The recipe it was compared with, or None.
        diff: What that one chooses else.
    """
    recipe = found.recipe
    return {
        "recipe": _recipe(recipe),
        "device": found.device,
        "is_here": found.is_here,
        "front_end": found.front_end or None,
        "options": dict(found.options),
        "applied": _number(found.applied),
        "classes": [
            {
                "id": use.id,
                "kind": use.kind,
                "count": use.count,
                "ops": list(use.ops),
                "asked": dict(use.asked),
                "precision": use.precision or None,
                "ran": None if use.ran is None else dict(use.ran),
                "reasons": list(use.reasons),
            }
            for use in found.classes
        ],
        "rewrites": [
            {"rewrite": rewrite, "executor": executor, "sites": sites}
            for (rewrite, executor), sites in found.rewrites.items()
        ],
        "statements": [_statement(group, found.profile) for group in found.groups],
        "profile": profile_document(found.profile, found.groups) if found.profile else None,
        "baselines": [
            {"name": name, **profile_document(profile, ())}
            for name, profile in found.baselines.items()
        ],
        "texts": [{"title": text.title, "text": text.text} for text in found.listings],
        "checks": [{"trace": c.title, "problem": c.text or None} for c in found.checks],
        "diff": None
        if other is None
        else {
            "recipe": _recipe(other),
            "choices": [
                {"dimension": d.dimension, "here": d.here or None, "there": d.there or None}
                for d in diff
            ],
        },
        "notes": list(found.notes),
        "error": None,
    }


def profile_document(profile: KernelProfile, groups: Sequence[CallGroup]) -> Document:
    """Return a profile; a kernel's statements are numbers of groups."""
    number_of = {call: group.number for group in groups for call in group.calls}
    return {
        "clock": profile.clock,
        "calls": profile.calls,
        "latency_ms": _number(profile.latency_ms),
        "profiled_ms": _number(profile.profiled_ms),
        "work_ms": _number(profile.work_ms),
        "idle_ms": _number(profile.idle_ms) if profile.clock == "device" else None,
        "kernels": [
            {
                "name": kernel.name,
                "times": kernel.times,
                "ms": _number(kernel.ms),
                "share": _number(kernel.share),
                "statements": sorted({number_of[r] for r in kernel.ranges if r in number_of}),
            }
            for kernel in profile.kernels
        ],
    }


def _statement(group: CallGroup, profile: KernelProfile | None) -> Document:
    ms = None
    if profile is not None and profile.ranges:
        ms = sum(profile.ranges.get(call, 0.0) for call in group.calls)
    return {
        "number": group.number,
        "name": group.name or None,
        "place": group.place,
        "is_region": group.is_region,
        "backward": group.backward,
        "ops": list(group.ops),
        "times": len(group.calls),
        "ms": _number(ms),
    }


def _recipe(recipe: Recipe) -> Document:
    evidence = recipe.evidence
    return {
        "model": recipe.model,
        "digest": recipe.digest,
        "kind": recipe.kind,
        "verdict": evidence.verdict if evidence else None,
        "latency_ms": _number(evidence.latency_ms) if evidence else None,
        "speedup": _number(evidence.speedup) if evidence else None,
        "speedup_ci95": _pair(evidence.speedup_ci95) if evidence else None,
    }


def failure_text(failure: Failure | None) -> str:
    """Write a failure as one line: its kind, then what happened."""
    return f"{failure.kind}: {failure.message}" if failure else ""


def failure_groups(results: Sequence[TrialResult]) -> list[tuple[Failure, int]]:
    """Group failures of one cause; each with its first example, the most frequent first."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for result in results:
        if result.failure is not None:
            key = (result.failure.kind, result.failure.group or result.failure.message)
            groups.setdefault(key, []).append(result.failure)
    return sorted(((g[0], len(g)) for g in groups.values()), key=lambda pair: -pair[1])


def _standing(comparison: Comparison | None, name: str) -> Standing | None:
    if comparison is None:
        return None
    return next((s for s in comparison.standings if s.name == name), None)


def _measured(standing: Standing | None) -> Document:
    accuracy = standing.accuracy if standing else None
    return {
        "latency_ms": _number(standing.latency_ms) if standing else None,
        "ci95_ms": _pair(standing.ci95_ms) if standing else None,
        "error_ratio": _number(accuracy.error_ratio) if accuracy else None,
        "peak_memory_bytes": standing.peak_memory_bytes if standing else None,
    }


def _number(value: float | None) -> float | None:
    """Return a number that JSON can hold: neither infinity nor NaN."""
    return value if value is not None and math.isfinite(value) else None


def _pair(values: tuple[float, float] | None) -> list[float | None] | None:
    return [_number(v) for v in values] if values else None

"""The JSON objects that commands print with --json: every key in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from thunder_tune.values.comparison import Comparison
from thunder_tune.values.documents import (
    Document,
    baseline_document,
    disturbances,
    measured_document,
    number,
    pair,
    program_document,
    standing_of,
)
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import Description
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import describe
from thunder_tune.values.study import Outcome, StudySpec, Winner, baselines_for
from thunder_tune.values.trial import TrialResult

if TYPE_CHECKING:
    from thunder_tune.compiler.calls import CallGroup
    from thunder_tune.measure.kernels import KernelProfile
    from thunder_tune.recipes import Difference
    from thunder_tune.study.explaining import Explanation


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
            "seconds": number(found.capture_s) if found else None,
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
            baseline_document(name, standing_of(outcome.comparison, name), baselines.get(name))
            for name in baselines_for(device)
        ],
        "best": winner_document(outcome.best, recipes),
        "best_composed": winner_document(outcome.best_composed, recipes),
        "error": outcome.error or None,
    }


def shapes_document(
    name: str,
    outcomes: Sequence[Outcome],
    specs: Sequence[StudySpec],
    *,
    baselines: Sequence[Mapping[str, TrialResult]],
    best: Recipe | None,
    composed: Recipe | None,
    paths: Mapping[str, str],
) -> Document:
    """Return the object of `thunder-tune run --shapes`.

    Args:
        name: Of the run.
        outcomes: How the studies of the shapes ended, as far as they were run.
        specs: Of all shapes.
        baselines: For each outcome, as in `run_document`.
        best: The recipe of the best programs, or None.
        composed: That of the best composed programs, or None.
        paths: Paths of the recipe files by digest.
    """
    shapes = []
    for outcome, spec, measured in zip(outcomes, specs, baselines, strict=False):
        found = outcome.description
        shapes.append(
            {
                "batch_size": spec.setting.source.batch_size,
                "seq_len": spec.setting.source.seq_len,
                "inputs": found.signature if found and found.failure is None else None,
                **run_document(outcome, spec, baselines=measured, recipes={}),
            }
        )
    errors = [f"{o.study}: {o.error}" for o in outcomes if o.error]
    return {
        "study": name,
        "recipe": paths.get(best.digest) if best else None,
        "digest": best.digest if best else None,
        "composed_recipe": paths.get(composed.digest) if composed else None,
        "shapes": shapes,
        "error": "; ".join(errors) or None,
    }


def winner_document(winner: Winner | None, recipes: Mapping[str, str]) -> Document | None:
    """Return a winner, or None where there is none."""
    if winner is None:
        return None
    measured = measured_document(winner.standing)
    return {
        "recipe": winner.recipe_path or recipes.get(winner.digest),
        "digest": winner.digest,
        "kind": winner.kind,
        "latency_ms": measured["latency_ms"],
        "ci95_ms": measured["ci95_ms"],
        "error_ratio": measured["error_ratio"],
        "applied": number(winner.standing.applied),
        "verdict": winner.verdict,
        "speedup": number(winner.speedup),
        "speedup_ci95": pair(winner.speedup_ci95),
    }


def space_document(description: Description) -> Document:
    """Return the object of `thunder-tune space`."""
    return {
        "program": program_document(description.program),
        "dimensions": describe(description.space),
    }


def bench_document(
    recipe: Recipe,
    comparison: Comparison,
    *,
    device: str,
    tuned: Winner | None,
    commands: Mapping[str, str],
    error: str,
) -> Document:
    """Return the object of `thunder-tune bench`: baselines and recipe, measured just now."""
    names = [c.name for c in comparison.contenders if c.is_baseline]
    winner = winner_document(tuned, {})
    return {
        "recipe": _named(recipe),
        "device": device,
        "rounds": len(comparison.rounds),
        "processes": [r.process_id for r in comparison.rounds],
        "baselines": [baseline_document(n, standing_of(comparison, n)) for n in names],
        "tuned": winner,
        "commands": dict(commands),
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
        "recipe": _named(recipe),
        "finding": finding,
        "reason": reason or None,
        "change_percent": None if change is None else number(100 * change),
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
        "baselines": [baseline_document(n, standing_of(comparison, n)) for n in names],
        "tuned": winner_document(now, {}),
        "marks": disturbances(comparison) if comparison else {},
        "error": error or None,
    }


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
        "applied": number(found.applied),
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
        "latency_ms": number(profile.latency_ms),
        "profiled_ms": number(profile.profiled_ms),
        "work_ms": number(profile.work_ms),
        "idle_ms": number(profile.idle_ms) if profile.clock == "device" else None,
        "kernels": [
            {
                "name": kernel.name,
                "times": kernel.times,
                "ms": number(kernel.ms),
                "share": number(kernel.share),
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
        "ms": number(ms),
    }


def _named(recipe: Recipe) -> Document:
    return {
        "model": recipe.model,
        "digest": recipe.digest,
        "kind": recipe.kind,
        "inputs": recipe.plans[0].signature,
    }


def _recipe(recipe: Recipe) -> Document:
    evidence = recipe.evidence
    return {
        **_named(recipe),
        "verdict": evidence.verdict if evidence else None,
        "latency_ms": number(evidence.latency_ms) if evidence else None,
        "speedup": number(evidence.speedup) if evidence else None,
        "speedup_ci95": pair(evidence.speedup_ci95) if evidence else None,
    }

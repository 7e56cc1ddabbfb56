"""Recipes of a study's winners, with the evidence."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from thunder_tune.values.comparison import Comparison
from thunder_tune.values.job import Description, Setting
from thunder_tune.values.recipe import BaselineEvidence, Evidence, Recipe, TunedPlan
from thunder_tune.values.study import Winner


def make_recipe(
    *,
    study: str,
    setting: Setting,
    description: Description,
    comparison: Comparison,
    winner: Winner,
    trials: int,
) -> Recipe:
    """Write a confirmed winner down as a recipe.

    Args:
        study: Name of the study.
        setting: The model, how it is run and judged.
        description: Program and machine.
        comparison: The confirmation that `winner` comes from.
        winner: With a latency and its interval.
        trials: Search trials that the study measured.
    """
    program, standing = description.program, winner.standing
    latency_ms = standing.latency_ms or 0.0
    baselines = []
    for contender in comparison.contenders:
        if not contender.is_baseline:
            continue
        beside = comparison.standing(contender.name)
        failure = f"{beside.failure.kind}: {beside.failure.message}" if beside.failure else ""
        baselines.append(
            BaselineEvidence(
                name=contender.name,
                latency_ms=beside.latency_ms,
                ci95_ms=beside.ci95_ms,
                failure=failure,
            )
        )
    evidence = Evidence(
        study=study,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        latency_ms=latency_ms,
        ci95_ms=standing.ci95_ms or (latency_ms, latency_ms),
        verdict=winner.verdict,
        speedup=winner.speedup,
        speedup_ci95=winner.speedup_ci95,
        accuracy=standing.accuracy and replace(standing.accuracy, tensors=()),
        peak_memory_bytes=standing.peak_memory_bytes,
        trials=trials,
        processes=len({r.process_id for r in comparison.rounds}),
        baselines=tuple(baselines),
    )
    plan = TunedPlan(
        signature=description.signature,
        program_hash=program.hash,
        program_loose_hash=program.loose_hash,
        assignment=dict(winner.assignment),
        classes=program.tuned_ids(winner.assignment),
    )
    return Recipe(
        model=setting.source.name,
        source=setting.source,
        kind=winner.kind,
        plans=(plan,),
        fingerprint=description.fingerprint,
        policy=setting.policies[0],
        front_end=program.front_end,
        evidence=evidence,
    )

"""`thunder-tune run`: search, confirm, and write the recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.documents import run_document, space_document
from thunder_tune.cli.durations import text_of
from thunder_tune.cli.estimate import estimated_s
from thunder_tune.cli.recipe_paths import check_writable, composed_path, default_path
from thunder_tune.cli.request import BudgetFlags, ModelFlags, new_spec, resumed_spec
from thunder_tune.cli.study_commands import resume_command
from thunder_tune.errors import InputError
from thunder_tune.recipes import write_recipe
from thunder_tune.values.documents import failure_groups
from thunder_tune.values.study import Outcome, StudySpec, Winner
from thunder_tune.values.trial import TrialResult

if TYPE_CHECKING:
    from thunder_tune.storage import Database

_ENDINGS = {
    "time": "ended by the time budget",
    "exhausted": "no other plan is left",
    "interrupted": "interrupted",
}
"""Why a search ended before the trials asked for; a failure is told by its error."""


def run(
    model: options.Model = None,
    inputs: options.InputFactory = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Candidates to measure. [100]")
    ] = None,
    time_budget: options.TimeBudget = None,
    study: Annotated[
        str | None,
        typer.Option("--study", metavar="NAME", help="Name of the study; an old one is resumed."),
    ] = None,
    storage: options.Storage = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    batch_size: options.BatchSize = None,
    seq_len: options.SeqLen = None,
    mode: options.Mode = None,
    policy: options.Policies = None,
    metric: options.Metric = None,
    metric_min: options.MetricMin = None,
    preset: options.Preset = None,
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    out: options.Out = None,
    seed: options.Seed = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the dimensions and the estimated minutes.")
    ] = False,
    as_json: options.Json = False,
) -> int:
    """Find the fastest accurate way to run a model and write it down as a recipe.

    With --study alone, an earlier study goes on where it stopped.
    """
    flags = ModelFlags(
        model=model,
        inputs=inputs,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        seq_len=seq_len,
        mode=mode,
        policies=tuple(policy or ()),
        metric=metric,
        metric_min=metric_min,
        preset=preset,
        seed=seed,
    )
    budget = BudgetFlags(trials=trials, time_budget=time_budget, workers=workers)
    if model is None and study is None:
        raise InputError("--model is missing: name a model of `thunder-tune models` or a factory")
    spec = None if model is None else new_spec(study, flags, budget)
    with services.database(storage) as database:
        if spec is None:
            spec = resumed_spec(database.study(study or "").spec, flags, budget)
        path = out or default_path(spec.setting.source.name)
        check_writable(path)
        if dry_run:
            return _dry_run(spec, database, as_json)
        outcome = _tune(spec, database, ray_address)
        paths = _write_recipes(outcome, database, path)
        _report(outcome, spec, database, paths, storage=storage, as_json=as_json)
    return exits.status_of(outcome)


def _tune(spec: StudySpec, database: Database, ray_address: str | None) -> Outcome:
    from thunder_tune.cli.progress import observing
    from thunder_tune.cli.tables import console
    from thunder_tune.study import run_study

    stderr = console(stderr=True)
    title = f"study {spec.name}"
    with (
        observing(stderr, title) as observer,
        services.pool(spec.setting, workers=spec.workers, ray_address=ray_address) as pool,
    ):
        return run_study(spec, pool=pool, database=database, observer=observer)


def _write_recipes(outcome: Outcome, database: Database, path: Path) -> dict[str, str]:
    """Write the recipes of the best and the best composed program; return paths by digest."""
    stored = {r.digest: r for r in database.recipes(outcome.study)}
    written: dict[str, str] = {}
    for winner, target in ((outcome.best, path), (outcome.best_composed, composed_path(path))):
        if winner is None or winner.digest in written or winner.digest not in stored:
            continue
        write_recipe(stored[winner.digest], target)
        written[winner.digest] = str(target)
    return written


def _report(
    outcome: Outcome,
    spec: StudySpec,
    database: Database,
    paths: Mapping[str, str],
    *,
    storage: str | None,
    as_json: bool,
) -> None:
    """Print tables, where the recipe is, and how to go on; with --json all that on stderr."""
    from thunder_tune.cli import tables

    results = [record.result for record in database.trials(spec.name)]
    screen = tables.console(stderr=as_json)
    if outcome.comparison is not None:
        screen.print(tables.confirmed(outcome.comparison, outcome.top))
    if groups := failure_groups(results):
        screen.print(tables.failures(groups))
    for line in _closing(outcome, paths):
        screen.print(line, soft_wrap=True)
    stderr = tables.console(stderr=True)
    if outcome.state == "interrupted":
        again = resume_command(spec.name, storage)
        stderr.print(f"interrupted; to go on: {again}", soft_wrap=True)
    elif outcome.error:
        stderr.print(f"error: {' '.join(outcome.error.split())}", soft_wrap=True)
    if as_json:
        document = run_document(outcome, spec, baselines=_baselines(results), recipes=paths)
        print(json.dumps(document, allow_nan=False))


def _baselines(results: list[TrialResult]) -> dict[str, TrialResult]:
    from thunder_tune.study.baselines import baseline_name

    return {baseline_name(r): r for r in results if r.role == "baseline"}


def _closing(outcome: Outcome, paths: Mapping[str, str]) -> list[str]:
    counts = outcome.counts
    ended = f", {_ENDINGS[outcome.stopped]}" if outcome.stopped in _ENDINGS else ""
    lines = [
        f"trials: {counts.complete} complete, {counts.failed} failed, {counts.pruned} pruned "
        f"of {counts.requested}{ended}"
    ]
    named: list[tuple[str, Winner | None]] = [("best", outcome.best)]
    if outcome.best_composed != outcome.best:
        named.append(("best composed", outcome.best_composed))
    for label, winner in named:
        if winner is None:
            continue
        lo, hi = winner.speedup_ci95
        lines.append(
            f"{label}: {winner.standing.name} ({winner.kind}), {winner.verdict}: "
            f"{winner.speedup:.3f}x the best baseline ({lo:.3f}-{hi:.3f})"
        )
        if winner.digest in paths:
            lines.append(f"recipe: {paths[winner.digest]}")
    return lines


def _dry_run(spec: StudySpec, database: Database, as_json: bool) -> int:
    from thunder_tune.cli import tables

    description = services.description_of(replace(spec.setting, log_folder=""))
    names = {s.name for s in database.studies() if s.model == spec.setting.source.name}
    past = [
        record.result
        for name in sorted(names)
        if (known := database.description(name)) is not None
        and known.program.hash == description.program.hash
        and known.fingerprint == description.fingerprint
        for record in database.trials(name)
    ]
    seconds = estimated_s(spec, description, past)
    screen = tables.console(stderr=as_json)
    screen.print(tables.dimensions(description))
    basis = f"by {len(past)} earlier results" if past else "a guess by the number of ops"
    screen.print(f"estimated: {text_of(seconds)} for {spec.trials} trials ({basis})")
    if as_json:
        document = {
            **space_document(description),
            "trials": spec.trials,
            "estimated_minutes": round(seconds / 60, 1),
        }
        print(json.dumps(document, allow_nan=False))
    return exits.DONE

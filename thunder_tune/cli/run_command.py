"""`thunder-tune run`: search, confirm, and write the recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.documents import run_document, space_document
from thunder_tune.cli.durations import text_of
from thunder_tune.cli.estimate import estimated_s
from thunder_tune.cli.recipe_paths import check_writable, composed_path, default_path
from thunder_tune.cli.reports import print_outcome, search_baselines
from thunder_tune.cli.request import BudgetFlags, ModelFlags, divided, new_specs, resumed_spec
from thunder_tune.cli.run_shapes import run_shapes
from thunder_tune.cli.study_commands import resume_command
from thunder_tune.errors import InputError
from thunder_tune.recipes import write_recipe
from thunder_tune.values.documents import Document
from thunder_tune.values.recipe import TunedPlan
from thunder_tune.values.shapes import run_of_study, studies_by_shape
from thunder_tune.values.study import Outcome, StudySpec

if TYPE_CHECKING:
    from thunder_tune.storage import Database


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
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes",
            metavar="1,8,64",
            help="Batch sizes, as 1,8,64, or with sequence lengths, as 1x128,8x512: a study for "
            "each and one recipe for all.",
        ),
    ] = None,
    seq_len: options.SeqLen = None,
    mode: options.Mode = None,
    policy: options.Policies = None,
    metric: options.Metric = None,
    metric_min: options.MetricMin = None,
    preset: options.Preset = None,
    screening: Annotated[
        bool | None,
        typer.Option(
            "--screening/--no-screening",
            help="Measure the choices of each class alone first. [on a GPU]",
        ),
    ] = None,
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
        shapes=shapes,
        seq_len=seq_len,
        mode=mode,
        policies=tuple(policy or ()),
        metric=metric,
        metric_min=metric_min,
        preset=preset,
        seed=seed,
    )
    budget = BudgetFlags(
        trials=trials, time_budget=time_budget, workers=workers, screening=screening
    )
    if model is None and study is None:
        raise InputError("--model is missing: name a model of `thunder-tune models` or a factory")
    new = None if model is None else new_specs(study, flags, budget)
    with services.database(storage) as database:
        name, specs = new or _resumed(study or "", database, flags, budget)
        shape = name.removeprefix(run_of_study(name))  # one of several leaves their file alone
        path = out or default_path(specs[0].setting.source.name + shape)
        check_writable(path)
        if dry_run:
            return _dry_run(specs, database, as_json)
        if [spec.name for spec in specs] != [name]:
            return run_shapes(
                name,
                specs,
                database,
                lambda spec, others: _tune(spec, database, ray_address, others),
                has_new_budget=trials is not None or time_budget is not None,
                path=path,
                storage=storage,
                as_json=as_json,
            )
        (spec,) = specs
        outcome = _tune(spec, database, ray_address)
        paths = _write_recipes(outcome, database, path)
        _report(outcome, spec, database, paths, storage=storage, as_json=as_json)
    return exits.status_of(outcome)


def _resumed(
    name: str, database: Database, flags: ModelFlags, budget: BudgetFlags
) -> tuple[str, tuple[StudySpec, ...]]:
    """Return the stored study of a name, or those of a run over several shapes."""
    names = [summary.name for summary in database.studies()]
    studies = () if name in names else studies_by_shape(name, names)
    if not studies:
        return name, (resumed_spec(database.study(name).spec, flags, budget),)
    stored = [database.study(study).spec for study in studies]
    return name, divided([resumed_spec(spec, flags, budget) for spec in stored], budget)


def _tune(
    spec: StudySpec,
    database: Database,
    ray_address: str | None,
    others: Sequence[TunedPlan] = (),
) -> Outcome:
    from thunder_tune.cli.progress import observing
    from thunder_tune.cli.tables import console
    from thunder_tune.study import run_study
    from thunder_tune.study.lease import holding

    stderr = console(stderr=True)
    title = f"study {spec.name}"
    with (
        observing(stderr, title) as observer,
        # Before the workers: another run is refused at once, and ended only once they are.
        holding(database, spec.name, notice=observer.on_notice) as lease,
        services.pool(spec.setting, workers=spec.workers, ray_address=ray_address) as pool,
    ):
        return run_study(
            spec, pool=pool, database=database, observer=observer, others=others, lease=lease
        )


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

    print_outcome(tables.console(stderr=as_json), outcome, database, paths)
    stderr = tables.console(stderr=True)
    if outcome.state == "interrupted":
        again = resume_command(spec.name, storage)
        stderr.print(f"interrupted; to go on: {again}", soft_wrap=True)
    elif outcome.error:
        stderr.print(f"error: {' '.join(outcome.error.split())}", soft_wrap=True)
    if as_json:
        baselines = search_baselines(database, outcome.study)
        document = run_document(outcome, spec, baselines=baselines, recipes=paths)
        print(json.dumps(document, allow_nan=False))


def _dry_run(specs: Sequence[StudySpec], database: Database, as_json: bool) -> int:
    estimates = [_estimate(spec, database, as_json=as_json) for spec in specs]
    if as_json:
        (first, *others) = estimates
        print(json.dumps({"shapes": estimates} if others else first, allow_nan=False))
    return exits.DONE


def _estimate(spec: StudySpec, database: Database, *, as_json: bool) -> Document:
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
    screen.print(
        f"estimated: {text_of(seconds)} for {spec.trials} trials of {description.signature} "
        f"({basis})"
    )
    return {
        **space_document(description),
        "trials": spec.trials,
        "estimated_minutes": round(seconds / 60, 1),
    }

"""`thunder-tune run --shapes`: a study for each input shape, and one recipe for all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from thunder_tune.cli import exits
from thunder_tune.cli.documents import shapes_document
from thunder_tune.cli.recipe_paths import composed_path
from thunder_tune.cli.reports import print_outcome, search_baselines
from thunder_tune.cli.study_commands import resume_command
from thunder_tune.recipes import write_recipe
from thunder_tune.values.recipe import Recipe, TunedPlan
from thunder_tune.values.study import Outcome, StudySpec

if TYPE_CHECKING:
    from thunder_tune.storage import Database

Tune = Callable[[StudySpec, Sequence[TunedPlan]], Outcome]
"""Runs one study, which begins with the plans of another shape."""


def run_shapes(
    name: str,
    specs: Sequence[StudySpec],
    database: Database,
    tune: Tune,
    *,
    has_new_budget: bool,
    path: Path,
    storage: str | None,
    as_json: bool,
) -> int:
    """Tune one shape after the other and write one recipe with a plan for each.

    Shapes that are done are left alone unless a budget is given. What one shape leaves of the
    time budget is divided among those after it. A shape for which nothing could be measured is
    told, and is no reason to leave out the others.

    Args:
        name: Of the run; its studies are called NAME@SHAPE.
        specs: One for each shape, from small to large.
        database: Where studies and recipes are stored.
        tune: Runs one of the studies.
        has_new_budget: Whether trials or time were given with this command.
        path: Of the recipe file.
        storage: Of the database, as the user gave it.
        as_json: Print an object on stdout and everything else on stderr.

    Returns:
        The exit status.

    Raises:
        ConflictError: A name belongs to a study of another setting.
    """
    from thunder_tune.study.shapes import save_together

    done = _prepare(specs, database, has_new_budget=has_new_budget)
    outcomes = _tune_all(specs, done, database, tune)
    is_over = all(outcome.state != "interrupted" for outcome in outcomes)
    best, composed = save_together(database, outcomes) if is_over else (None, None)
    paths = _write(best, composed, path)
    _report(name, specs, outcomes, database, paths, storage=storage, as_json=as_json)
    if as_json:
        document = shapes_document(
            name,
            outcomes,
            specs,
            baselines=[search_baselines(database, outcome.study) for outcome in outcomes],
            best=best,
            composed=composed,
            paths=paths,
        )
        print(json.dumps(document, allow_nan=False))
    return max(exits.status_of(outcome) for outcome in outcomes)


def _prepare(
    specs: Sequence[StudySpec], database: Database, *, has_new_budget: bool
) -> dict[str, Outcome]:
    """Store every study, so that a later run knows all shapes; return those that are done."""
    from thunder_tune.study.shapes import stored_outcome

    known = {summary.name for summary in database.studies()}
    done = {}
    for spec in specs:
        if spec.name not in known:
            database.create_study(spec)
            database.update_study(spec.name, state="interrupted")
            continue
        stored = database.study(spec.name).spec
        kept = replace(spec, trials=stored.trials, time_budget_s=stored.time_budget_s)
        database.create_study(kept)  # a conflict is found before hours of work on other shapes
        if not has_new_budget and (outcome := stored_outcome(database, spec)):
            done[spec.name] = outcome
    return done


def _tune_all(
    specs: Sequence[StudySpec], done: dict[str, Outcome], database: Database, tune: Tune
) -> list[Outcome]:
    from thunder_tune.study.shapes import best_plans

    waiting = [spec for spec in specs if spec.name not in done]
    total_s = sum(spec.time_budget_s or 0.0 for spec in waiting)
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for spec in specs:
        if spec.name in done:
            outcomes.append(done[spec.name])
            continue
        if spec.time_budget_s is not None:
            left_s = total_s - (time.monotonic() - started)
            share_s = max(1.0, left_s / (len(waiting) - waiting.index(spec)))
            budgeted = replace(spec, time_budget_s=share_s)
        else:
            budgeted = spec
        others = best_plans(database, outcomes[-1].study) if outcomes else ()
        outcomes.append(tune(budgeted, others))
        if outcomes[-1].state == "interrupted":
            break
    return outcomes


def _write(best: Recipe | None, composed: Recipe | None, path: Path) -> dict[str, str]:
    """Write the recipe, and the one of composed programs where it is another; paths by digest."""
    written: dict[str, str] = {}
    for recipe, target in ((best, path), (composed, composed_path(path))):
        if recipe is not None and recipe.digest not in written:
            write_recipe(recipe, target)
            written[recipe.digest] = str(target)
    return written


def _report(
    name: str,
    specs: Sequence[StudySpec],
    outcomes: Sequence[Outcome],
    database: Database,
    paths: dict[str, str],
    *,
    storage: str | None,
    as_json: bool,
) -> None:
    from thunder_tune.cli import tables

    screen, stderr = tables.console(stderr=as_json), tables.console(stderr=True)
    for outcome in outcomes:
        inputs = outcome.description.signature if outcome.description else "inputs unknown"
        screen.print(f"\nstudy {outcome.study}: {inputs}", soft_wrap=True)
        print_outcome(screen, outcome, database, {})
    missing = [o.study for o in outcomes if o.best is None and o.state != "interrupted"]
    if missing and paths:
        screen.print(f"without a plan in the recipe: {', '.join(missing)}", soft_wrap=True)
    for written in paths.values():
        screen.print(f"recipe: {written}", soft_wrap=True)
    if outcomes[-1].state == "interrupted":
        left = [spec.name for spec in specs[len(outcomes) - 1 :]]
        again = resume_command(name, storage)
        stderr.print(f"interrupted, {', '.join(left)} not done; to go on: {again}", soft_wrap=True)
    for outcome in outcomes:
        if outcome.error:
            error = " ".join(outcome.error.split())
            stderr.print(f"error: {outcome.study}: {error}", soft_wrap=True)

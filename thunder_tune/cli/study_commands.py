"""Commands that read the record: `studies`, `status`, `best`, `show`, `export`, `db upgrade`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.recipe_paths import check_writable, default_path
from thunder_tune.errors import NotFoundError
from thunder_tune.recipes import write_recipe
from thunder_tune.values.codec import to_data
from thunder_tune.values.documents import failure_groups
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import COMPOSED, PROGRAM

if TYPE_CHECKING:
    from thunder_tune.storage import Database, StudySummary


def studies(storage: options.Storage = None, as_json: options.Json = False) -> int:
    """List the studies in the database."""
    from thunder_tune.cli import tables
    from thunder_tune.storage.listing import summary_document

    with services.database(storage) as database:
        found, place = database.studies(), database.shown_url
    if as_json:
        print(json.dumps({"storage": place, "studies": [summary_document(s) for s in found]}))
        return exits.DONE
    numbers = ("trials", "best ms", "best baseline ms")
    made = tables.table(
        f"Studies in {place}",
        "study",
        "model",
        "device",
        "state",
        *numbers,
        "created",
        right=numbers,
    )
    for s in found:
        made.add_row(
            s.name,
            s.model,
            s.device,
            s.state,
            str(s.trials),
            tables.milliseconds(s.best_ms),
            tables.milliseconds(s.best_baseline_ms),
            f"{s.created_at:%Y-%m-%d %H:%M}",
        )
    tables.console().print(made)
    return exits.DONE


def status(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="Default: the newest study.")
    ] = None,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Say where a study stands."""
    from thunder_tune.cli import tables
    from thunder_tune.storage.listing import summary_document

    with services.database(storage) as database:
        summary = _find(database, study)
        record = database.study(summary.name)
        trials = database.trials(summary.name, "search")
    states = Counter(t.result.state for t in trials)
    kinds = Counter(t.result.failure.kind for t in trials if t.result.failure)
    document = {
        **summary_document(summary),
        "requested": record.spec.trials,
        "complete": states["complete"],
        "failed": states["failed"],
        "pruned": states["pruned"],
        "failed_by_kind": dict(kinds),
        "error": record.error or None,
    }
    if as_json:
        print(json.dumps(document))
        return exits.DONE
    failed = ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items()))
    lines = [
        f"study {summary.name}: {summary.state}",
        f"trials: {len(trials)} of {record.spec.trials}: {states['complete']} complete, "
        f"{states['failed']} failed{f' ({failed})' if failed else ''}, {states['pruned']} pruned",
        f"best: {tables.milliseconds(summary.best_ms)} ms, best baseline "
        f"{tables.milliseconds(summary.best_baseline_ms)} ms (search-time, not confirmed)",
    ]
    if record.error:
        lines.append(f"last error: {record.error}")
    if summary.state != "done":
        again = resume_command(summary.name, storage)
        is_said = "to go on" if summary.state != "running" else "to go on should it be dead"
        lines.append(f"{is_said}: {again}")
    for line in lines:
        tables.console().print(line, soft_wrap=True)
    return exits.DONE


def best(
    study: options.StudyArgument,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Print the recipe that a study found and what it is worth."""
    from thunder_tune.cli import tables

    with services.database(storage) as database:
        recipe = newest_recipe(database, study)
        comparison = database.comparison(study)
    if as_json:
        print(json.dumps({**to_data(recipe), "digest": recipe.digest}, allow_nan=False))
        return exits.DONE
    screen = tables.console()
    if recipe.evidence is not None:
        screen.print(tables.verdict(recipe), soft_wrap=True)
    if comparison is not None:
        screen.print(tables.confirmed(comparison, ()))
    for plan in recipe.plans:
        made = tables.table(f"Choices for {plan.signature}", "dimension", "choice")
        for name, choice in plan.assignment.items():
            made.add_row(name, choice)
        screen.print(made)
    return exits.DONE


def show(
    study: options.StudyArgument,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Print the trials of a study, and its failures by cause."""
    from thunder_tune.cli import tables
    from thunder_tune.storage.listing import trial_document

    with services.database(storage) as database:
        record, trials = database.study(study), database.trials(study)
    groups = failure_groups([t.result for t in trials])
    if as_json:
        document = {
            "study": study,
            "state": record.state,
            "trials": [trial_document(t) for t in trials],
            "failures": [
                {"kind": f.kind, "message": f.message, "times": n, "log": f.log or None}
                for f, n in groups
            ],
        }
        print(json.dumps(document))
        return exits.DONE
    numbers = ("number", "latency ms", "95 % interval", "error", "first call s")
    made = tables.table(
        f"Study {study}: {record.state}",
        "number",
        "role",
        "state",
        "program",
        *numbers[1:],
        "disturbed",
        "failure",
        right=numbers,
    )
    for t in trials:
        timing, accuracy = t.result.timing, t.result.accuracy
        lo, hi = timing.ci95_ms if timing else (None, None)
        made.add_row(
            str(t.number),
            t.result.role,
            t.result.state,
            t.result.candidate.assignment.get(PROGRAM, COMPOSED),
            tables.milliseconds(timing.latency_ms if timing else None),
            f"{tables.milliseconds(lo)}-{tables.milliseconds(hi)}" if timing else "-",
            f"{accuracy.error_ratio:.3g}" if accuracy else "-",
            "-" if t.result.first_call_s is None else f"{t.result.first_call_s:.1f}",
            " ".join(timing.marks) if timing else "",
            t.result.failure.kind if t.result.failure else "",
        )
    screen = tables.console()
    screen.print(made)
    if groups:
        screen.print(tables.failures(groups))
    return exits.DONE


def export(
    study: options.StudyArgument,
    out: options.Out = None,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Write the recipe that a study found to a file."""
    from thunder_tune.cli import tables

    with services.database(storage) as database:
        recipe = newest_recipe(database, study)
    path = out or default_path(recipe.model)
    check_writable(path)
    write_recipe(recipe, path)
    if as_json:
        print(json.dumps({"recipe": str(path), "digest": recipe.digest}))
    else:
        tables.console().print(f"recipe: {path}", soft_wrap=True)
    return exits.DONE


def resume_command(study: str, storage: str | None) -> str:
    """Return the command that goes on with a study."""
    words = ["thunder-tune", "run", "--study", study, *(["--storage", storage] if storage else [])]
    return shlex.join(words)


def upgrade(storage: options.Storage = None) -> int:
    """Create the database's tables, or bring them to this version."""
    from thunder_tune.cli import tables

    with services.database(storage) as database:
        place = database.shown_url
    tables.console().print(f"up to date: {place}", soft_wrap=True)
    return exits.DONE


def newest_recipe(database: Database, study: str) -> Recipe:
    """Return the recipe that a study's last confirmation found best.

    Raises:
        NotFoundError: There is no such study, or it has no recipe yet.
    """
    state = database.study(study).state
    recipes = database.recipes(study)
    if not recipes:
        raise NotFoundError(
            f"study {study!r} ({state}) has no recipe yet: let it end with "
            f"thunder-tune run --study {study}"
        )
    return recipes[0]


def _find(database: Database, study: str | None) -> StudySummary:
    summaries = database.studies()
    if study is None and not summaries:
        raise NotFoundError(
            f"no study is stored in {database.shown_url} yet: start one with "
            "thunder-tune run --model NAME"
        )
    name = study or summaries[0].name
    database.study(name)  # names close ones where it does not exist
    return next(s for s in summaries if s.name == name)

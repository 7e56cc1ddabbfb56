"""Commands that read the record: `studies`, `status`, `best`, `show`, `export`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.recipe_paths import check_writable, default_path
from thunder_tune.errors import NotFoundError
from thunder_tune.recipes import write_recipe
from thunder_tune.values.codec import to_data
from thunder_tune.values.documents import Document, failure_groups
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.shapes import run_of_study, studies_by_shape
from thunder_tune.values.space import COMPOSED, PROGRAM

if TYPE_CHECKING:
    from thunder_tune.storage import Database, TrialRecord


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

    with services.database(storage) as database:
        asked = study or run_of_study(_newest(database))
        documents = [_status(database, name) for name in _studies_of(database, asked)]
    if as_json:
        print(json.dumps(_one_or_several(asked, documents)))
        return exits.DONE
    for document in documents:
        for line in _status_lines(document, storage):
            tables.console().print(line, soft_wrap=True)
    return exits.DONE


def _status(database: Database, name: str) -> Document:
    from thunder_tune.storage.listing import summary_document
    from thunder_tune.study.lease import life_of

    record = database.study(name)  # names close ones where it does not exist
    lease = database.lease(name)
    summary = next(s for s in database.studies() if s.name == name)
    trials = database.trials(name, "search")
    states = Counter(t.result.state for t in trials)
    kinds = Counter(t.result.failure.kind for t in trials if t.result.failure)
    return {
        **summary_document(summary),
        "requested": record.spec.trials,
        "complete": states["complete"],
        "failed": states["failed"],
        "pruned": states["pruned"],
        "failed_by_kind": dict(kinds),
        "error": record.error or None,
        "controller": lease
        and {
            "host": lease.owner.host,
            "process_id": lease.owner.process_id,
            "since": lease.since.isoformat(),
            "life": life_of(lease.owner),
        },
    }


def _status_lines(status: Document, storage: str | None) -> list[str]:
    from thunder_tune.cli.tables import milliseconds

    kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(status["failed_by_kind"].items()))
    lines = [
        f"study {status['name']}: {status['state']}",
        f"trials: {status['trials']} of {status['requested']}: {status['complete']} complete, "
        f"{status['failed']} failed{f' ({kinds})' if kinds else ''}, {status['pruned']} pruned",
        f"best: {milliseconds(status['best_ms'])} ms, best baseline "
        f"{milliseconds(status['best_baseline_ms'])} ms (search-time, not confirmed)",
    ]
    if status["error"]:
        lines.append(f"last error: {status['error']}")
    lines += _controller_lines(status["controller"], status["name"], storage)
    if status["state"] != "done":
        again = resume_command(run_of_study(status["name"]), storage)
        life = (status["controller"] or {"life": "gone"})["life"]
        if life != "alive":
            lines.append(f"to go on{'' if life == 'gone' else ' should it be dead'}: {again}")
    return lines


def _controller_lines(controller: Document | None, study: str, storage: str | None) -> list[str]:
    """Say who runs a study, if anybody does, and what can be done about it."""
    if controller is None:
        return []
    who = f"process {controller['process_id']} on {controller['host']}"
    if controller["life"] == "gone":
        return [f"run by: {who}, which is dead"]
    since = f"{controller['since']:.19}".replace("T", " ")
    return [
        f"run by: {who} since {since} UTC",
        f"to end it: {_command('cancel', study, storage=storage)}",
    ]


def _one_or_several(name: str, documents: list[Document]) -> Document:
    """Return a study's document, or those of a run over several shapes."""
    (first, *others) = documents
    return {"study": name, "shapes": documents} if others else first


def best(
    study: options.StudyArgument,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Print the recipe that a study found and what it is worth."""
    from thunder_tune.cli import tables

    with services.database(storage) as database:
        recipe = newest_recipe(database, study)
        comparisons = {
            part.digest: database.comparison(part.evidence.study)
            for part in recipe.by_shape
            if part.evidence is not None
        }
    if as_json:
        print(json.dumps({**to_data(recipe), "digest": recipe.digest}, allow_nan=False))
        return exits.DONE
    screen = tables.console()
    parts = recipe.by_shape
    if len(parts) > 1:
        inputs = ", ".join(plan.signature for plan in recipe.plans)
        screen.print(f"recipe {recipe.digest} for {inputs}", soft_wrap=True)
    for part in parts:
        if part.evidence is not None:
            screen.print(tables.verdict(part), soft_wrap=True)
        comparison = comparisons.get(part.digest)
        if comparison is not None:
            screen.print(tables.confirmed(comparison, ()))
        made = tables.table(f"Choices for {part.plans[0].signature}", "dimension", "choice")
        for name, choice in part.plans[0].assignment.items():
            made.add_row(name, choice)
        screen.print(made)
    return exits.DONE


def show(
    study: options.StudyArgument,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Print the trials of a study, and its failures by cause."""
    with services.database(storage) as database:
        found = [
            (name, database.study(name).state, database.trials(name), _predicted(database, name))
            for name in _studies_of(database, study)
        ]
        drawn = [] if as_json else [_plots(database, name) for name, *_rest in found]
    if as_json:
        documents = [_study_document(*one) for one in found]
        print(json.dumps(_one_or_several(study, documents)))
        return exits.DONE
    for one, plots in zip(found, drawn, strict=True):
        _show(*one, plots)
    return exits.DONE


def _plots(database: Database, study: str) -> list[str]:
    from thunder_tune.cli import plots
    from thunder_tune.dashboards.trial_table import Tables

    table = Tables(database).of(study)
    return ["\n".join(lines) for lines in (plots.bars(table), plots.trade_off(table)) if lines]


def _predicted(database: Database, study: str) -> dict[int, float]:
    """Return what composed trials were predicted to take from classes measured alone."""
    from thunder_tune.study.composition import predictions

    description = database.description(study)
    if description is None or not description.program.is_captured:
        return {}
    known = database.screening(description.fingerprint.strict_key)
    return predictions(description, known, database.trials(study, "search")) if known else {}


def _study_document(
    study: str, state: str, trials: Sequence[TrialRecord], predicted: Mapping[int, float]
) -> Document:
    from thunder_tune.storage.listing import trial_document

    groups = failure_groups([t.result for t in trials])
    return {
        "study": study,
        "state": state,
        "trials": [{**trial_document(t), "predicted_ms": predicted.get(t.number)} for t in trials],
        "failures": [
            {"kind": f.kind, "message": f.message, "times": n, "log": f.log or None}
            for f, n in groups
        ],
    }


def _show(
    study: str,
    state: str,
    trials: Sequence[TrialRecord],
    predicted: Mapping[int, float],
    plots: Sequence[str],
) -> None:
    from thunder_tune.cli import tables

    numbers = ("number", "predicted ms", "latency ms", "95 % interval", "error", "first call s")
    made = tables.table(
        f"Study {study}: {state}",
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
            tables.milliseconds(predicted.get(t.number)),
            tables.milliseconds(timing.latency_ms if timing else None),
            f"{tables.milliseconds(lo)}-{tables.milliseconds(hi)}" if timing else "-",
            f"{accuracy.error_ratio:.3g}" if accuracy else "-",
            "-" if t.result.first_call_s is None else f"{t.result.first_call_s:.1f}",
            " ".join(timing.marks) if timing else "",
            t.result.failure.kind if t.result.failure else "",
        )
    screen = tables.console()
    screen.print(made)
    for plot in plots:
        screen.print(f"\n{plot}", soft_wrap=True)
    if groups := failure_groups([t.result for t in trials]):
        screen.print(tables.failures(groups))


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
    return _command("run", "--study", study, storage=storage)


def _command(*words: str, storage: str | None) -> str:
    return shlex.join(["thunder-tune", *words, *(["--storage", storage] if storage else [])])


def newest_recipe(database: Database, study: str) -> Recipe:
    """Return the recipe that a study, or a run over several shapes, found best.

    Raises:
        NotFoundError: There is no such study, or it has no recipe yet.
        ConflictError: The shapes were tuned on different machines.
    """
    from thunder_tune.study import shapes

    return shapes.newest_recipe(database, study)


def _studies_of(database: Database, name: str) -> tuple[str, ...]:
    """Return a study's name, or those of the studies of a run over several shapes."""
    names = [summary.name for summary in database.studies()]
    return (name,) if name in names else studies_by_shape(name, names) or (name,)


def _newest(database: Database) -> str:
    summaries = database.studies()
    if not summaries:
        raise NotFoundError(
            f"no study is stored in {database.shown_url} yet: start one with "
            "thunder-tune run --model NAME"
        )
    return summaries[0].name

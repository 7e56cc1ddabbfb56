"""`thunder-tune db`: upgrade, export, import, and removing what nobody needs any more."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.recipe_paths import check_writable
from thunder_tune.errors import InputError

_GZIP = ".gz"


def upgrade(storage: options.Storage = None) -> int:
    """Create the database's tables, or bring them to this version."""
    from thunder_tune.cli import tables

    with services.database(storage) as database:
        place = database.shown_url
    tables.console().print(f"up to date: {place}", soft_wrap=True)
    return exits.DONE


def export_studies(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Lines of JSON; packed where it ends in .gz.")
    ],
    study: Annotated[
        list[str] | None, typer.Option("--study", help="Of which; repeat it. Default: all.")
    ] = None,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Write studies with their trials and recipes to a file, for another database of any kind."""
    from thunder_tune.cli import tables

    check_writable(path)
    with services.database(storage) as database:
        names = study or [s.name for s in reversed(database.studies())]
        text = "".join(f"{line}\n" for line in database.export_lines(names))
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == _GZIP else content)
    if as_json:
        print(json.dumps({"file": str(path), "studies": names}))
    else:
        tables.console().print(f"{_counted(len(names))} written to {path}", soft_wrap=True)
    return exits.DONE


def import_studies(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What db export wrote.")],
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Store the studies of a file, all or none; they can be gone on with."""
    from thunder_tune.cli import tables

    lines = _lines(path)
    with services.database(storage) as database:
        try:
            names = database.import_lines(lines)
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error
    if as_json:
        print(json.dumps({"studies": names}))
    else:
        tables.console().print(f"{_counted(len(names))} imported: {', '.join(names)}")
    return exits.DONE


def collect(
    older_than: Annotated[
        int | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            min=0,
            help="Remove studies created longer ago, if nobody runs them and no recipe came out.",
        ),
    ] = None,
    with_recipes: Annotated[
        bool, typer.Option("--with-recipes", help="Those too that found a recipe.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Remove what nothing refers to any more, and old studies where asked."""
    from thunder_tune.cli import tables
    from thunder_tune.study.optuna_record import forget

    if with_recipes and older_than is None:
        raise InputError("--with-recipes: say which studies with --older-than DAYS")
    before = None
    if older_than is not None:
        before = datetime.now(timezone.utc) - timedelta(days=older_than)
    with services.database(storage) as database:
        found = database.collect(before=before, with_recipes=with_recipes, is_rehearsal=dry_run)
        if found.studies and not dry_run:
            forget(database.url, found.studies)
    counts = {
        "comparisons": found.comparisons,
        "programs": found.programs,
        "machines": found.machines,
    }
    if as_json:
        document = {"studies": list(found.studies), **counts, "dry_run": dry_run}
        print(json.dumps(document))
        return exits.DONE
    said = ", ".join(
        [_counted(len(found.studies)), *(f"{n} {what}" for what, n in counts.items())]
    )
    tables.console().print(f"{'would be removed' if dry_run else 'removed'}: {said}")
    for name in found.studies:
        tables.console().print(f"  {name}", soft_wrap=True)
    return exits.DONE


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        if path.suffix == _GZIP:
            content = gzip.decompress(content)
        return content.decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "cannot be read"
        raise InputError(
            f"{path}: {reason}: name a file that thunder-tune db export wrote"
        ) from error


def _counted(studies: int) -> str:
    return f"{studies} stud{'y' if studies == 1 else 'ies'}"

"""`thunder-tune regions`: what each choice of each class takes alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from thunder_tune.cli import exits, options, services
from thunder_tune.errors import NotFoundError

if TYPE_CHECKING:
    from thunder_tune.storage import Database
    from thunder_tune.values.job import Description
    from thunder_tune.values.screening import ClassMeasurement


def regions(
    study: options.StudyArgument,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """List the classes of a study's program and what each choice takes alone.

    Measured by any study on the same machine with the same versions.
    """
    with services.database(storage) as database:
        description = described(database, study)
        known = database.screening(description.fingerprint.strict_key)
    rows = _rows(description, known)
    if as_json:
        print(json.dumps({"study": study, "regions": rows}, allow_nan=False))
    else:
        _print(study, rows)
    return exits.DONE


def described(database: Database, study: str) -> Description:
    """Return what a worker found out about a study's model.

    Raises:
        NotFoundError: There is no such study, or no worker has described its model yet.
    """
    database.study(study)  # names close ones where it does not exist
    description = database.description(study)
    if description is None:
        raise NotFoundError(
            f"study {study!r} has no description yet: wait until a worker has captured its model"
        )
    return description


def _rows(
    description: Description, known: list[ClassMeasurement]
) -> list[dict[str, str | int | float | None]]:
    """Return a row for each choice of each class of the space, in program order."""
    from thunder_tune.values.screening import class_choices

    measured = {(m.class_id, m.choice): m for m in known}
    program = description.program
    classes = {c.id: c for c in (*program.classes, *program.site_classes)}
    rows: list[dict[str, str | int | float | None]] = []
    for class_id, choices in class_choices(description.space).items():
        for choice in choices:
            found = measured.get((class_id, choice))
            rows.append(
                {
                    "class": class_id,
                    "times": classes[class_id].count,
                    "summary": classes[class_id].summary,
                    "choice": choice,
                    "latency_ms": found.latency_ms if found else None,
                    "failure": (found.failure or None) if found else None,
                }
            )
    return rows


def _print(study: str, rows: list[dict[str, str | int | float | None]]) -> None:
    from thunder_tune.cli import tables

    least: dict[str, float] = {}
    for row in rows:
        ms = row["latency_ms"]
        if isinstance(ms, float):
            least[str(row["class"])] = min(ms, least.get(str(row["class"]), ms))
    numbers = ("times", "alone ms", "vs fastest")
    made = tables.table(
        f"Classes of {study}", "class", "times", "tensors", "choice", *numbers[1:], "failure",
        right=numbers,
    )  # fmt: skip
    for row, above in zip(rows, (None, *rows), strict=False):
        made.add_row(*_cells(row, above, least))
    tables.console().print(made)


def _cells(
    row: Mapping[str, str | int | float | None],
    above: Mapping[str, str | int | float | None] | None,
    least: Mapping[str, float],
) -> list[str]:
    from thunder_tune.cli.tables import milliseconds

    is_same = above is not None and above["class"] == row["class"]
    head = ["", "", ""] if is_same else [str(row[k]) for k in ("class", "times", "summary")]
    ms = row["latency_ms"]
    if not isinstance(ms, float):
        return [*head, str(row["choice"]), "-", "-", str(row["failure"] or "")]
    ratio = ms / least[str(row["class"])] if least[str(row["class"])] else 1.0
    return [*head, str(row["choice"]), milliseconds(ms), f"{ratio:.2f}x", ""]

"""`thunder-tune record`: a table of measured plans, to compare search strategies on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.recipe_paths import check_writable


def record(
    studies: Annotated[
        list[str],
        typer.Argument(metavar="STUDY...", help="Studies of one program on one machine."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the table.")],
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Write what studies measured as a table for `python -m benchmarks.replay`."""
    from thunder_tune.cli import tables
    from thunder_tune.study import recording
    from thunder_tune.values.replay import write_table

    check_writable(out)
    with services.database(storage) as database:
        table = recording.record(database, studies)
    write_table(table, out)
    document = {
        "table": str(out),
        "plans": len(table.plans),
        "random": sum(plan.is_random for plan in table.plans),
        "repeated": sum(len(plan.latencies_ms) > 1 for plan in table.plans),
        "measured_alone": sum(m.latency_ms is not None for m in table.measurements),
    }
    if as_json:
        print(json.dumps(document))
    else:
        tables.console().print(
            f"table: {out}: {document['plans']} plans, {document['random']} of them drawn at "
            f"random, {document['repeated']} measured more than once; "
            f"{document['measured_alone']} choices of classes measured alone",
            soft_wrap=True,
        )
    return exits.DONE

"""`thunder-tune report`: a study as one file to keep or to send."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.errors import InputError


def report(
    study: options.StudyArgument,
    as_html: Annotated[
        bool, typer.Option("--html", help="One HTML file with charts, nothing outside. [default]")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Markdown: tables and bars.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where to. Default: STUDY.report.html here; Markdown and JSON go to stdout.",
        ),
    ] = None,
    language: Annotated[
        str, typer.Option("--language", help="Of the HTML: en or zh (Chinese).")
    ] = "en",
    storage: options.Storage = None,
) -> int:
    """Write a report of a study that stands alone."""
    if as_html + as_markdown + as_json > 1:
        raise InputError("--html, --md and --json: give one of them")
    if language not in ("en", "zh"):
        raise InputError(f"unknown language {language!r}: use en or zh")
    form: Literal["html", "md", "json"] = "md" if as_markdown else "json" if as_json else "html"
    text = _written(study, form, language, storage)
    if out is None and form == "html":
        out = Path(re.sub(r"[^\w.-]+", "_", study) + ".report.html")
    if out is None:
        print(text)
        return exits.DONE
    try:
        out.write_text(text + "\n", encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"cannot write report {out}: {error.strerror}: choose another place with --out"
        ) from error
    print(f"report: {out}", file=sys.stderr)
    return exits.DONE


def _written(study: str, form: str, language: str, storage: str | None) -> str:
    from thunder_tune.dashboards import report as reports

    with services.database(storage) as database:
        if form == "md":
            return reports.as_markdown(database, study).rstrip("\n")
        if form == "json":
            return json.dumps(reports.as_document(database, study), allow_nan=False)
        return reports.as_html(database, study, language)

"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from thunder_tune.__about__ import __version__
from thunder_tune.cli import (
    bench_command,
    cancel_command,
    dashboard_command,
    database_commands,
    doctor_command,
    explain_command,
    record_command,
    regions_command,
    report_command,
    repro_command,
    run_command,
    space_command,
    study_commands,
    verify_command,
    worker_command,
)

app = typer.Typer(
    name="thunder-tune",
    help="Find the fastest accurate way to run a PyTorch model, and keep it as a recipe.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
db = typer.Typer(help="Look after the database.")
app.add_typer(db, name="db")

app.command("run")(run_command.run)
app.command("space")(space_command.space)
app.command("models")(space_command.models)
app.command("studies")(study_commands.studies)
app.command("status")(study_commands.status)
app.command("best")(study_commands.best)
app.command("show")(study_commands.show)
app.command("regions")(regions_command.regions)
app.command("record")(record_command.record)
app.command("export")(study_commands.export)
app.command("bench")(bench_command.bench)
app.command("verify")(verify_command.verify)
app.command("repro")(repro_command.repro)
app.command("explain")(explain_command.explain)
app.command("report")(report_command.report)
app.command("cancel")(cancel_command.cancel)
app.command("dashboard")(dashboard_command.dashboard)
app.command("worker")(worker_command.worker)
app.command("doctor")(doctor_command.doctor)
db.command("upgrade")(database_commands.upgrade)
db.command("export")(database_commands.export_studies)
db.command("import")(database_commands.import_studies)
db.command("gc")(database_commands.collect)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Find the fastest accurate way to run a PyTorch model, and keep it as a recipe."""

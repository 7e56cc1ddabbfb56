"""`thunder-tune explain`: what a recipe's program is, why, and where its time goes."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.bench_command import is_file, recipe_of, setting_of
from thunder_tune.cli.documents import explain_document
from thunder_tune.cli.recipe_shapes import one_shape
from thunder_tune.recipes import differences
from thunder_tune.values.recipe import Recipe

if TYPE_CHECKING:
    from thunder_tune.study.explaining import Alone


def explain(
    subject: Annotated[
        str, typer.Argument(metavar="RECIPE|STUDY", help="Recipe file, or name of a study.")
    ],
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Print Thunder's execution trace and each region's code."),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Time every kernel and every region on the device.")
    ] = False,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="Time the kernels of a baseline on the same model; may be repeated.",
        ),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option("--diff", metavar="RECIPE|STUDY", help="Say what another recipe does else."),
    ] = None,
    nvtx: Annotated[
        bool,
        typer.Option(
            "--nvtx", help="Run in NVTX ranges: nsys profile -c cudaProfilerApi thunder-tune ..."
        ),
    ] = False,
    check_traces: Annotated[
        bool, typer.Option("--check-traces", help="Let Thunder check every trace.")
    ] = False,
    calls: Annotated[int, typer.Option("--calls", help="Calls to profile.")] = 10,
    shape: options.Shape = None,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Say what a recipe does with each op, why, and where the time goes."""
    recipe = one_shape(recipe_of(subject, storage), shape)
    other = _beside(recipe, recipe_of(diff, storage)) if diff is not None else None
    with _quiet(), contextlib.redirect_stdout(sys.stderr):  # a user's model may print
        from thunder_tune.cli import explain_tables, tables
        from thunder_tune.study.explaining import Question, anatomy
        from thunder_tune.study.explaining import explain as answer

        question = Question(
            trace=trace,
            profile=profile,
            baselines=tuple(baseline or ()),
            nvtx=nvtx,
            check_traces=check_traces,
            calls=calls,
        )
        source = setting_of(recipe, "explain").source
        found = answer(recipe, source, question, alone=_alone(source.device))
        if (trace or profile or baseline) and (storage or not is_file(subject)):
            with services.database(storage) as database:  # the dashboard shows it
                database.save_anatomy(recipe, anatomy(found))
    screen = tables.console(stderr=as_json)
    explain_tables.show(screen, found)
    choices = differences(recipe, other) if other is not None else ()
    if other is not None:
        screen.print(f"\nthe other {tables.verdict(other)}", soft_wrap=True)
        made = explain_tables.differences(recipe, other, choices)
        screen.print(made if choices else "the two choose the same")
    if as_json:
        print(json.dumps(explain_document(found, other, choices), allow_nan=False))
    return exits.FAILED if any(check.text for check in found.checks) else exits.DONE


def _beside(recipe: Recipe, other: Recipe) -> Recipe:
    """Return the part of another recipe that is for the same inputs, else its first."""
    inputs = recipe.plans[0].signature
    parts = other.by_shape
    return next((part for part in parts if part.plans[0].signature == inputs), parts[0])


def _alone(device: str) -> Alone:
    """Keep the other processes of a GPU still while something is timed on it."""
    from thunder_tune.workers.device_lease import lease_of

    def held() -> contextlib.AbstractContextManager[None]:
        return lease_of(device).held(_say_waiting, quietly=True)

    return held


def _say_waiting() -> None:
    print("waiting for the device: another process measures on it", file=sys.stderr)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # thunder warns of each package it could use
        warnings.simplefilter("ignore")
        yield

"""The JSON API: everything that pages show, described by OpenAPI at /api/openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from thunder_tune.dashboards import documents, insight, trial_table, views
from thunder_tune.dashboards.anatomy import anatomies
from thunder_tune.dashboards.events import events
from thunder_tune.dashboards.responses import SafeJson
from thunder_tune.dashboards.source import Source, progress, summary
from thunder_tune.errors import NotFoundError
from thunder_tune.storage.listing import summary_document, trial_document
from thunder_tune.values.codec import to_data
from thunder_tune.values.documents import program_document
from thunder_tune.values.space import describe

Document = dict[str, Any]
Name = Annotated[str, Path(description="Name of a study.", max_length=200)]
Number = Annotated[int, Path(description="Number of a trial in its study.", ge=0, le=2**31 - 1)]
Digest = Annotated[str, Path(description="Digest of a recipe.", pattern="^[0-9a-f]{12}$")]
SortKey = Literal[
    "number", "latency", "error", "memory", "first_call", "program", "state", "failure"
]
State = Literal["", "complete", "failed", "pruned"]
Role = Literal["", "search", "baseline"]

router = APIRouter(
    prefix="/api",
    default_response_class=SafeJson,
    responses={
        404: {"description": "There is no such study, trial or recipe."},
        503: {"description": "The database cannot be read."},
    },
)


def source_of(request: Request) -> Source:
    """Return what a request reads from."""
    source: Source = request.app.state.source
    return source


@router.get("/studies")
def studies(request: Request) -> Document:
    """List all studies, newest first."""
    database = source_of(request).database
    return {
        "storage": database.shown_url,
        "studies": [summary_document(s) for s in database.studies()],
    }


@router.get("/studies/{name}")
def study(request: Request, name: Name) -> Document:
    """Tell where a study stands, what it was asked and what a worker found out."""
    source = source_of(request)
    record = source.database.study(name)
    table = source.tables.of(name)
    found, lease = source.database.description(name), source.database.lease(name)
    return {
        **documents.study_document(
            summary_document(summary(record, table)), record, progress(record, table), found
        ),
        "controller": documents.lease_document(lease, views.life(lease)),
    }


@router.get("/studies/{name}/events", response_class=StreamingResponse)
def study_events(request: Request, name: Name) -> Response:
    """Stream a `progress` event whenever a study changes, until it no longer runs."""
    source = source_of(request)
    source.database.study(name)
    return StreamingResponse(
        events(source.database, name, is_closing=request.app.state.is_closing),
        media_type="text/event-stream",
    )


def asked_trials(
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    size: Annotated[int, Query(ge=1, le=500)] = 50,
    sort: SortKey = "number",
    descending: bool = False,
    state: State = "",
    role: Role = "",
    text: Annotated[str, Query(max_length=200)] = "",
) -> trial_table.Query:
    """Read which trials a request asks for, of the API and of the pages alike."""
    return trial_table.Query(
        sort=sort,
        descending=descending,
        state=state,
        role=role,
        text=text,
        page=page,
        size=size,
    )


AskedTrials = Annotated[trial_table.Query, Depends(asked_trials)]


@router.get("/studies/{name}/trials")
def trials(request: Request, name: Name, query: AskedTrials) -> Document:
    """Return one page of a study's trials; `text` is looked for in program, failure and worker."""
    source = source_of(request)
    rows, total = trial_table.select(source.tables.of(name), query)
    records = {t.number: t for t in source.database.trials(name, numbers=[r.number for r in rows])}
    return {
        "study": name,
        "total": total,
        "page": query.page,
        "size": query.size,
        "trials": [trial_document(records[r.number]) for r in rows if r.number in records],
    }


@router.get("/studies/{name}/trials/{number}")
def trial(request: Request, name: Name, number: Number) -> Document:
    """Return a trial with every repeat."""
    return documents.trial_details(source_of(request).trial(name, number))


@router.get("/studies/{name}/failures")
def failures(request: Request, name: Name) -> Document:
    """Group a study's failures by cause, with an example of each."""
    source = source_of(request)
    groups = insight.failures(source.tables.of(name))
    first = [group.numbers[0] for group in groups]
    examples = {t.number: t.result.failure for t in source.database.trials(name, numbers=first)}
    found = []
    for group in groups:
        example = examples.get(group.numbers[0])
        message, log = (example.message, example.log) if example else (group.cause, "")
        excerpt = source.log_excerpt(log) if log else None
        found.append(documents.failure_document(group, message, log, excerpt))
    return {"study": name, "failures": found}


@router.get("/studies/{name}/importance")
def importance(request: Request, name: Name) -> Document:
    """Tell how much of the latency's variance each dimension explains, and by which choice."""
    found = insight.effects(source_of(request).tables.of(name))
    return {"study": name, "dimensions": [documents.effect_document(e) for e in found]}


@router.get("/studies/{name}/program")
def program(
    request: Request,
    name: Name,
    number: Annotated[int | None, Query(alias="trial", ge=0, le=2**31 - 1)] = None,
) -> Document:
    """Return the captured program, the search space, and where a trial runs each op."""
    source = source_of(request)
    found = source.database.description(name)
    if found is None:
        raise NotFoundError(f"study {name!r} has no program yet: no worker has captured it")
    plan = None
    if number is not None:
        plan = views.plan_of(found, source.trial(name, number).result.candidate.assignment)
    return {
        "program": program_document(found.program),
        "dimensions": describe(found.space),
        "plan": plan
        and {
            "targets": list(plan.targets),
            "regions": [{"fuser": r.fuser, "ops": list(r.ops)} for r in plan.regions],
        },
    }


@router.get("/studies/{name}/comparison")
def comparison(request: Request, name: Name) -> Document:
    """Return the last confirmation of a study: null before the first."""
    found = source_of(request).database.comparison(name)
    return {"study": name, "comparison": found and documents.comparison_document(found)}


@router.get("/recipes")
def recipes(request: Request) -> Document:
    """List all recipes, newest first."""
    found = source_of(request).database.recipes()
    return {"recipes": [documents.recipe_document(recipe) for recipe in found]}


@router.get("/recipes/{digest}")
def recipe(request: Request, digest: Digest) -> Document:
    """Return one recipe."""
    return documents.recipe_document(source_of(request).recipe(digest))


@router.get("/recipes/{digest}/anatomies")
def recipe_anatomies(request: Request, digest: Digest) -> Document:
    """Return of each shape of a recipe its statements, their times and their code, where known."""
    source = source_of(request)
    recipe = source.recipe(digest)
    return {
        "digest": recipe.digest,
        "anatomies": [
            {
                "inputs": recipe.plans[shape].signature,
                **documents.finite(to_data(found)),
            }
            for shape, found in anatomies(source.database, recipe)
        ],
    }


@router.get("/machines")
def machines(request: Request) -> Document:
    """List the machines that results were measured on, and what runs."""
    source = source_of(request)
    return {
        "machines": [documents.machine_document(m) for m in source.database.machines()],
        "running": [documents.run_document(run) for run in views.runs(source)],
    }

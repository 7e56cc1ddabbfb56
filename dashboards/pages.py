"""The pages, rendered on the server; every one works without scripts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from thunder_tune.dashboards import insight, languages, trial_table, views
from thunder_tune.dashboards.anatomy import anatomies, anatomy_views
from thunder_tune.dashboards.api import AskedTrials, Digest, Name, Number, source_of
from thunder_tune.dashboards.charts import bars, repeats
from thunder_tune.dashboards.recent import Recent
from thunder_tune.dashboards.responses import SafeHtml
from thunder_tune.dashboards.templating import render, study_path
from thunder_tune.errors import NotFoundError
from thunder_tune.recipes import differences
from thunder_tune.storage import StudySummary
from thunder_tune.values.codec import to_json
from thunder_tune.values.space import COMPOSED, PROGRAM

LANGUAGE_COOKIE = "thunder_tune_language"
PAGE = 50

router = APIRouter(include_in_schema=False, default_response_class=SafeHtml)

_ORDERS = {
    "created": lambda s: s.created_at.timestamp(),
    "name": lambda s: s.name.casefold(),
    "model": lambda s: s.model.casefold(),
    "device": lambda s: s.device,
    "state": lambda s: s.state,
    "trials": lambda s: s.trials,
    "best": lambda s: s.best_ms or float("inf"),
    "baseline": lambda s: s.best_baseline_ms or float("inf"),
    "speedup": lambda s: -(gain(s) or 0.0),
}


def gain(summary: StudySummary) -> float | None:
    """Return how many times faster a study's best is than its best baseline, unconfirmed."""
    if not summary.best_ms or summary.best_baseline_ms is None:
        return None
    return summary.best_baseline_ms / summary.best_ms


def language_of(request: Request) -> str:
    """Return the reader's language: asked for, chosen before, or the browser's."""
    for given in (request.query_params.get("lang"), request.cookies.get(LANGUAGE_COOKIE)):
        if given in languages.LANGUAGES:
            return given
    return languages.preferred(request.headers.get("accept-language", ""))


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401
    """Answer with a page, and remember a language that was asked for."""
    language = language_of(request)
    others = [
        (code, name, str(request.url.include_query_params(lang=code).query))
        for code, name in languages.LANGUAGES.items()
    ]
    html = render(
        template,
        language,
        storage=source_of(request).database.shown_url,
        path=request.url.path,
        languages=others,
        **values,
    )
    answer = SafeHtml(html, status)
    if request.query_params.get("lang") in languages.LANGUAGES:
        answer.set_cookie(LANGUAGE_COOKIE, language, max_age=31_536_000, samesite="strict")
    return answer


def problem(request: Request, status: int, words: str) -> Response:
    """Answer with a page that says what went wrong."""
    return page(request, "problem.html", status, code=status, words=words)


@router.get("/")
def studies(
    request: Request, sort: str = "created", descending: bool = True, text: str = ""
) -> Response:
    """List the studies."""
    found = source_of(request).database.studies()
    wanted = text.casefold()
    shown = [s for s in found if wanted in f"{s.name} {s.model} {s.device} {s.state}".casefold()]
    order = _ORDERS.get(sort, _ORDERS["created"])
    shown.sort(key=order, reverse=descending)
    return page(
        request,
        "studies.html",
        studies=[(s, gain(s)) for s in shown],
        total=len(found),
        sort=sort if sort in _ORDERS else "created",
        descending=descending,
        text=text,
    )


@router.get("/studies/{name}")
def study(request: Request, name: Name) -> Response:
    """Show a study."""
    source, language = source_of(request), language_of(request)
    version = (*source.database.count(name), source.database.study(name).state)
    recent: Recent[views.StudyView] = request.app.state.views
    view = recent.get(
        (name, language),
        version,
        lambda: views.study_view(source, name, _trial_link(name), languages.translator(language)),
    )
    return page(request, "study.html", view=view, name=name)


@router.get("/studies/{name}/trials")
def trials(request: Request, name: Name, asked: AskedTrials) -> Response:
    """Show a study's trials, one page of them."""
    source = source_of(request)
    query = replace(asked, size=PAGE)
    rows, total = trial_table.select(source.tables.of(name), query)
    return page(
        request,
        "trials.html",
        name=name,
        rows=rows,
        total=total,
        asked=query,
        pages=max(1, -(-total // PAGE)),
    )


@router.get("/studies/{name}/trials/{number}")
def trial(
    request: Request,
    name: Name,
    number: Number,
    against: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
) -> Response:
    """Show a trial, and what another one chose."""
    source, _ = source_of(request), languages.translator(language_of(request))
    record = source.trial(name, number)
    result = record.result
    other = None if against is None else source.trial(name, against)
    timing, failure = result.timing, result.failure
    mine = dict(result.candidate.assignment)
    theirs = dict(other.result.candidate.assignment) if other else {}
    return page(
        request,
        "trial.html",
        name=name,
        record=record,
        result=result,
        other=other,
        count=source.database.count(name)[0],
        choices=[(d, mine.get(d), theirs.get(d)) for d in sorted({*mine, *theirs})],
        program=mine.get(PROGRAM, COMPOSED),
        recipes=[
            r
            for r in source.database.recipes(name)
            if dict(r.plans[0].assignment) == mine and any(anatomies(source.database, r))
        ],
        excerpt=source.log_excerpt(failure.log) if failure and failure.log else None,
        phases=bars.phases(result.phase_s, _),
        distribution=timing
        and repeats.distribution(timing.samples_ms, timing.latency_ms, timing.ci95_ms, _),
        in_order=timing and repeats.in_order(timing.samples_ms, _),
    )


@router.get("/studies/{name}/program")
def program(
    request: Request,
    name: Name,
    number: Annotated[int | None, Query(alias="trial", ge=0, le=2**31 - 1)] = None,
) -> Response:
    """Show the program's ops coloured by where a trial, or the best composed one, runs them."""
    source, _ = source_of(request), languages.translator(language_of(request))
    found = source.database.description(name)
    if number is None:
        rows = insight.measured(source.tables.of(name))
        best = insight.best([r for r in rows if r.program == COMPOSED])
        number = best.number if best else None
    assignment = None if number is None else source.trial(name, number).result.candidate.assignment
    view = None
    if found is not None and assignment is not None:
        view = views.program_view(found, assignment, _)
    recipes = source.database.recipes(name)
    known = anatomy_views(source.database, recipes, view.tones if view else {}, _)
    return page(
        request,
        "program.html",
        name=name,
        found=found,
        number=number,
        view=view,
        anatomies=known,
        has_recipe=bool(recipes),
        shell_name=shlex.quote(name),
    )


@router.get("/recipes")
def recipes(request: Request) -> Response:
    """List the recipes."""
    return page(request, "recipes.html", recipes=source_of(request).database.recipes())


@router.get("/recipes/{digest}")
def recipe(request: Request, digest: Digest) -> Response:
    """Show a recipe and why to believe it."""
    source = source_of(request)
    found, _ = source.recipe(digest), languages.translator(language_of(request))
    evidence = found.evidence
    chart = None
    if evidence is not None:
        own = bars.Bar(_("this recipe"), evidence.latency_ms, evidence.ci95_ms, False)
        others = [
            bars.Bar(b.name, b.latency_ms, b.ci95_ms, True)
            for b in evidence.baselines
            if b.latency_ms is not None
        ]
        chart = bars.intervals([own, *others], _)
    known = anatomy_views(source.database, [found], {}, _)
    return page(
        request, "recipe.html", recipe=found, evidence=evidence, chart=chart, anatomies=known
    )


@router.get("/recipes/{digest}/texts/{position}")
def text(
    request: Request,
    digest: Digest,
    position: Annotated[int, Path(ge=0, le=10_000)],
    shape: Annotated[int, Query(ge=0, le=1000)] = 0,
) -> Response:
    """Show a trace, or the code that was generated for a region."""
    source = source_of(request)
    recipe = source.recipe(digest)
    texts = next((a.texts for s, a in anatomies(source.database, recipe) if s == shape), ())
    if position >= len(texts):
        raise NotFoundError(f"text {position} of recipe {digest} does not exist: it has none such")
    return page(
        request,
        "text.html",
        recipe=recipe,
        shape=shape,
        text=texts[position],
        texts=texts,
        position=position,
    )


@router.get("/recipes/{digest}/download")
def download(request: Request, digest: Annotated[str, Path(pattern="^[0-9a-f]{12}$")]) -> Response:
    """Hand out a recipe as a file that `load_recipe` reads."""
    found = source_of(request).recipe(digest)
    headers = {"content-disposition": f'attachment; filename="{digest}.recipe.json"'}
    return Response(to_json(found).encode(), media_type="application/json", headers=headers)


@router.get("/machines")
def machines(request: Request) -> Response:
    """Show the machines and how they differ."""
    source = source_of(request)
    return page(
        request, "machines.html", machines=source.database.machines(), runs=views.runs(source)
    )


@router.get("/compare")
def compare(request: Request, a: str = "", b: str = "") -> Response:
    """Show two studies beside each other."""
    source, _ = source_of(request), languages.translator(language_of(request))
    names = [s.name for s in source.database.studies()]
    for name in (a, b):
        if name and name not in names:
            raise NotFoundError(f"study {name[:200]!r} does not exist")
    sides = [views.study_view(source, name, _trial_link(name), _) for name in (a, b) if name]
    changed, machines = [], []
    if len(sides) == 2:
        one, two = (side.description for side in sides)
        machines = one.fingerprint.differences(two.fingerprint) if one and two else []
        if sides[0].recipes and sides[1].recipes:
            changed = list(differences(sides[0].recipes[0], sides[1].recipes[0]))
    return page(
        request,
        "compare.html",
        names=names,
        a=a,
        b=b,
        sides=sides,
        machine_differences=machines,
        changed=changed,
    )


def _trial_link(study: str) -> views.LinkTo:
    return lambda number: study_path(study, "trials", number)

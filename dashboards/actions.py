"""The one thing that can be done from a page: to end a study that runs."""

from __future__ import annotations

import shlex
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.responses import RedirectResponse, Response

from thunder_tune.dashboards.api import Name, source_of
from thunder_tune.dashboards.pages import page
from thunder_tune.dashboards.security import is_sealed, seal_of
from thunder_tune.dashboards.source import progress
from thunder_tune.dashboards.templating import study_path
from thunder_tune.study.cancelling import cancel_study
from thunder_tune.study.lease import BEAT_S, DEAD_AFTER
from thunder_tune.values.shapes import run_of_study

PATIENCE_S = (DEAD_AFTER + 2) * BEAT_S
"""A page waits so long for a study to end: enough to find its process dead."""
MOST_BYTES = 4096

router = APIRouter(include_in_schema=False)


async def form_of(request: Request) -> dict[str, str]:
    """Read the fields of a small form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "this form is too large")
    return {key: values[-1] for key, values in parse_qs(body.decode("latin-1")).items()}


@router.get("/studies/{name}/cancel")
def confirm(request: Request, name: Name) -> Response:
    """Ask whether a study is meant to end."""
    source = source_of(request)
    record, lease = source.database.study(name), source.database.lease(name)
    return page(
        request,
        "cancel.html",
        name=name,
        state=record.state,
        lease=lease,
        progress=progress(record, source.tables.of(name)),
        again=shlex.quote(run_of_study(name)),
        seal=seal_of(request.app.state.form_key, f"cancel {name}"),
    )


@router.post("/studies/{name}/cancel")
def cancel(request: Request, name: Name, form: dict[str, str] = Depends(form_of)) -> Response:  # noqa: B008
    """End a study as `thunder-tune cancel` does, and show it again."""
    if not is_sealed(request.app.state.form_key, f"cancel {name}", form.get("seal", "")):
        raise HTTPException(403, "this page is too old: load it again, then cancel the study")
    database = source_of(request).database
    if database.lease(name) is not None or database.study(name).state == "running":
        cancel_study(database, name, patience_s=PATIENCE_S)
    return RedirectResponse(study_path(name), 303)

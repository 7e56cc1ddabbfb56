"""The web application, put together: API, pages, static files, errors, and the guard around it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from thunder_tune.__about__ import __version__
from thunder_tune.dashboards import actions, api, metrics, pages
from thunder_tune.dashboards.recent import Recent
from thunder_tune.dashboards.responses import SafeJson
from thunder_tune.dashboards.security import LOCAL_NAMES, Guard
from thunder_tune.dashboards.source import Source
from thunder_tune.dashboards.views import StudyView
from thunder_tune.errors import NotFoundError, ThunderTuneError

FOLDER = Path(__file__).parent
FRESH_S = 2.0
"""How old a study's page may be where no trial was added; a confirmation adds none."""
_log = logging.getLogger(__name__)


def create_app(
    source: Source,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = LOCAL_NAMES,
    is_closing: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Make the application for one database, which the caller closes.

    Args:
        source: Of the database to show; nothing is written to it but the wish that a study ends.
        token: See `Guard`.
        hosts: See `Guard`.
        is_closing: Whether the server is about to end: streams of events then end too.
    """
    app = FastAPI(
        title="thunder-tune",
        version=__version__,
        description="Studies, trials and recipes of a thunder-tune database, to read.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page would fetch scripts from elsewhere
        redoc_url=None,
        default_response_class=SafeJson,
    )
    app.state.source = source
    app.state.is_closing = is_closing
    app.state.form_key = secrets.token_bytes(32)
    app.state.views = Recent[StudyView](FRESH_S)
    app.include_router(api.router)
    app.include_router(metrics.router)
    app.include_router(pages.router)
    app.include_router(actions.router)
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    app.add_exception_handler(ThunderTuneError, _own_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)
    return Guard(app, token=token, hosts=hosts)


def _own_error(request: Request, error: Exception) -> Response:
    return _answer(request, 404 if isinstance(error, NotFoundError) else 503, str(error))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = "there is no such page" if error.status_code == 404 else error.detail
    return _answer(request, error.status_code, words)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return _answer(request, 422, f"{where}: {first['msg']}")


def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s failed", request.url.path, exc_info=error)
    return _answer(request, 500, "this should not have happened: see the dashboard's output")


def _answer(request: Request, status: int, words: str) -> Response:
    if request.url.path.startswith("/api/"):
        return SafeJson({"error": words}, status)
    return pages.problem(request, status, words)

"""Serve the web application until interrupted."""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress

import uvicorn

from thunder_tune.dashboards import templating
from thunder_tune.dashboards.app import create_app
from thunder_tune.dashboards.security import LOCAL_NAMES
from thunder_tune.dashboards.source import Source
from thunder_tune.errors import InputError, ThunderTuneError
from thunder_tune.storage import Database


def bind(host: str, port: int) -> socket.socket:
    """Open the port before anything is printed about it.

    Raises:
        InputError: The address is not one of this machine, or the port is taken.
    """
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(info[0], socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(info[4])
        found.listen(128)  # whoever comes before the server is up waits
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot serve at {host}:{port} ({error}): choose others with --host and --port"
        ) from error
    return found


def token_for(host: str, given: str | None) -> str | None:
    """Return the token that readers need: none on this machine alone, unless one is given."""
    if given is not None and (len(given) < 16 or not given.isascii() or not given.isprintable()):
        raise InputError("token: at least 16 characters of plain ASCII")
    return given or (None if host in LOCAL_NAMES else secrets.token_urlsafe(24))


def address(host: str, port: int, token: str | None) -> str:
    """Return what to open in a browser."""
    if host in ("0.0.0.0", "::", ""):  # every address: by name it can be opened from elsewhere
        host = socket.gethostname()
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/{f'?token={token}' if token else ''}"


def serve(database: Database, listener: socket.socket, *, host: str, token: str | None) -> None:
    """Answer requests until SIGINT or SIGTERM.

    Args:
        database: To show.
        listener: From `bind`.
        host: As asked: requests to an address of this machine alone must name it so.
        token: From `token_for`.
    """
    source = Source.of(database)
    threading.Thread(target=_warm, args=(source,), daemon=True).start()
    app = create_app(
        source,
        token=token,
        hosts=LOCAL_NAMES if host in LOCAL_NAMES else None,
        is_closing=lambda: server.should_exit,
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses may hold the token
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listener])


def _warm(source: Source) -> None:
    """Read the newest studies ahead; what goes wrong is told to whoever asks for a page."""
    templating.warm()
    with suppress(ThunderTuneError):
        source.tables.warm([summary.name for summary in source.database.studies()])
